// Stops a worker's loop at SIGINT and SIGTERM.
//
// The signals are blocked from the constructor on, in every thread that starts behind it; the thread that
// waits for them is the only one that gets them. So construct it before anything that may start threads.
//
// Invariants: after Unwatch no signal reaches the loop. Threads: one of its own, from Watch to Unwatch.
#ifndef WEFT_WORKER_SHELL_SIGNAL_STOP_H_
#define WEFT_WORKER_SHELL_SIGNAL_STOP_H_

#include <signal.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/threads.h"
#include "worker/shell/loop/session_link.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {

class SignalStop {
 public:
  SignalStop() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  void Watch(WorkerLoop* loop, SessionLink* link) {
    thread_ = StartThread([this, loop, link] {
      int signal = 0;
      sigwait(&set_, &signal);
      if (signal == SIGUSR2) return;
      taken_ = signal;
      link->LeaveRun(absl::StrCat("it was stopped by SIG", sigabbrev_np(signal)));
      loop->Stop();
    });
  }
  // Returns the signal that ended the loop; 0 for none.
  int taken() const { return taken_; }
  // Stops watching. After it no signal reaches the loop; it may be destroyed.
  void Unwatch() {
    if (!thread_.joinable()) return;
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
  }
  ~SignalStop() { Unwatch(); }

 private:
  sigset_t set_;
  std::atomic<int> taken_{0};
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_SIGNAL_STOP_H_
