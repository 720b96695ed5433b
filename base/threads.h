// Starts threads: the one place for it. std::thread throws where the kernel gives no thread, and the process
// ends with SIGABRT.
#ifndef WEFT_BASE_THREADS_H_
#define WEFT_BASE_THREADS_H_

#include <signal.h>

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Returns ResourceExhausted for the cause for which the kernel starts no thread or process, with what to do.
absl::Status NoThread(absl::string_view cause);

// Starts a thread. ResourceExhausted, with what to do, if the process can have no more.
absl::StatusOr<std::thread> TryStartThread(std::function<void()> work);

// Starts a thread without which the program cannot go on. If there is none, it ends the process: the reason
// on standard error, exit code 75.
std::thread StartThread(std::function<void()> work);

// Blocks all signals of the calling thread while it lives. A thread that a library starts meanwhile has them
// blocked for good, so that a signal for the process reaches the thread that waits for it.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Returns ResourceExhausted if the process cannot have `count` threads more at this moment. A program calls
// it at its start if its libraries do not survive the lack of one.
absl::Status CheckThreads(int count);

}  // namespace weft

#endif  // WEFT_BASE_THREADS_H_
