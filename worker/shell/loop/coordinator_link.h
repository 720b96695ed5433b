// Declares the session with the coordinator as the worker's loop sees it; the gRPC stream implements it.
#ifndef WEFT_WORKER_SHELL_LOOP_COORDINATOR_LINK_H_
#define WEFT_WORKER_SHELL_LOOP_COORDINATOR_LINK_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/session/messages.h"

namespace weft {

class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Queues a message; never blocks. Any thread.
  virtual void Send(FromWorker message) = 0;
  // Appends the messages that have arrived. Returns false when the link is lost for good: status() says why.
  virtual bool Drain(std::vector<FromCoordinator>* messages) = 0;
  // Does what Drain does, for a caller that polls again and again because it has nothing else to do.
  virtual bool Await(std::vector<FromCoordinator>* messages) { return Drain(messages); }
  virtual absl::Status status() const = 0;
  // Registers anew, with a session of its own and without the messages of the one before, with a coordinator
  // that does not know that one any more. `returns`: as in Hello. Returns false if the link is lost for
  // another reason.
  virtual bool Renew(bool returns) { return false && returns; }
  // Prepares for waiting on event_fd.
  virtual void Arm() {}
  // Returns a descriptor that is readable when Drain has something.
  virtual int event_fd() const = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_COORDINATOR_LINK_H_
