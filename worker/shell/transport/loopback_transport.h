// Makes transports within one process, for tests: tensors are handed over by sharing them. The programs use
// ucx_transport.h.
//
// A LoopbackNetwork joins any number of transports and can misbehave on request: kill a transport, lose
// messages, hold them back, deliver them later. The transports keep the network's state alive.
//
// Threads: the network is thread-safe; each transport follows transport.h, so different threads may drive
// different transports.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_LOOPBACK_TRANSPORT_H_
#define WEFT_WORKER_SHELL_TRANSPORT_LOOPBACK_TRANSPORT_H_

#include <memory>
#include <string>

#include "worker/shell/transport/transport.h"

namespace weft {

class LoopbackNetwork {
 public:
  LoopbackNetwork();
  ~LoopbackNetwork();

  // Makes a transport. With `carries_device` it also takes tensors of device memory, shared like all others.
  std::unique_ptr<Transport> CreateTransport(bool carries_device = false);

  // Acts as if the process of the transport had died: it sends and receives nothing more, and its peers
  // report PeerFailed.
  void Kill(const std::string& address);

  // Keeps messages from one transport to another until Deliver, which hands them over in order and ends the
  // holding.
  void HoldBack(const std::string& from, const std::string& to);
  void Deliver(const std::string& from, const std::string& to);

  // Loses one message from one transport to another: the `nth` from now on, the first by 0; below 0 none.
  void Lose(const std::string& from, const std::string& to, int nth);
  // Returns how many messages were lost so.
  int lost() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_LOOPBACK_TRANSPORT_H_
