// Stops a worker's loop at SIGINT and SIGTERM, if there is time once its run goes on elsewhere.
//
// The signals are blocked from the constructor on, in every thread that starts behind it; the thread that
// waits for them is the only one that gets them. So construct it before anything that may start threads.
//
// SIGHUP, where it is heard, has the configuration taken anew, and stops nothing.
//
// Invariants: after Unwatch no signal reaches the loop. Threads: one of its own, from Watch to Unwatch.
#ifndef WEFT_WORKER_SHELL_SIGNAL_STOP_H_
#define WEFT_WORKER_SHELL_SIGNAL_STOP_H_

#include <signal.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"
#include "worker/shell/loop/session_link.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {

class SignalStop {
 public:
  // `reload` is called at SIGHUP, on the thread that waits; null: SIGHUP does what it does by default.
  explicit SignalStop(std::function<void()> reload = nullptr) : reload_(std::move(reload)) {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR2);
    awaited_ = set_;
    if (reload_) sigaddset(&awaited_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &awaited_, nullptr);
  }
  // A process that serves a run asks to leave first, and gives the coordinator `patience_s` seconds for that;
  // another signal ends the patience.
  void Watch(WorkerLoop* loop, SessionLink* link, int patience_s) {
    patience_s_ = patience_s;
    thread_ = StartThread([this, loop, link] {
      int signal = 0;
      while (sigwait(&awaited_, &signal) == 0 && signal == SIGHUP) reload_();
      if (signal == SIGUSR2) return;
      taken_ = signal;
      const std::string name = absl::StrCat("SIG", sigabbrev_np(signal));
      const timespec patience{patience_s_, 0};
      if (patience.tv_sec > 0 && link->AskToLeave(name)) {
        if (sigtimedwait(&set_, nullptr, &patience) == SIGUSR2) return;  // it has left
      }
      link->LeaveRun(absl::StrCat("it was stopped by ", name));
      loop->Stop();
    });
  }
  // Gives another patience, until a signal has come. Any thread.
  void SetPatience(int patience_s) { patience_s_ = patience_s; }
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
  const std::function<void()> reload_;
  sigset_t set_, awaited_;  // what stops, and that with SIGHUP
  std::atomic<int> taken_{0}, patience_s_{0};
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_SIGNAL_STOP_H_
