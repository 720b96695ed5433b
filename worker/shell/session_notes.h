// Writes a worker's log of its session. It sees each message that comes and goes, knows the run that the
// process serves, and has a line for events that an operator wants to see. Pure but for that; not
// thread-safe.
#ifndef WEFT_WORKER_SHELL_SESSION_NOTES_H_
#define WEFT_WORKER_SHELL_SESSION_NOTES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "proto/session/messages.h"

namespace weft {

class SessionNotes {
 public:
  // Return the line, without time and program; "" where there is nothing to say.
  std::string OnReceived(const FromCoordinator& message);
  std::string OnSent(const FromWorker& message);

  uint64_t run() const { return run_; }         // run that the process serves; 0 for none
  int32_t process() const { return process_; }  // number of the process; -1 before Welcome
  // Returns why the coordinator asked the process to end: "" if only this one is to leave, nothing before it
  // asked.
  const std::optional<std::string>& shutdown() const { return shutdown_; }

 private:
  uint64_t run_ = 0;
  int32_t process_ = -1;
  std::optional<std::string> shutdown_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_SESSION_NOTES_H_
