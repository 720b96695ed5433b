// Stops a worker's slots at SIGINT and SIGTERM, if there is time once their runs go on elsewhere.
//
// The signals are blocked from the constructor on, in every thread that starts behind it; the thread that
// waits for them is the only one that gets them. So construct it before anything that may start threads.
//
// SIGHUP, where it is heard, has the configuration taken anew, and stops nothing.
//
// Invariants: after Unwatch no signal reaches a slot. Threads: one of its own, from Watch to Unwatch.
#ifndef WEFT_WORKER_SHELL_SIGNAL_STOP_H_
#define WEFT_WORKER_SHELL_SIGNAL_STOP_H_

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/threads.h"
#include "worker/shell/run_slot.h"

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
  // A slot that serves a run asks to leave first, and gives the coordinator `patience_s` seconds for that;
  // another signal ends the patience.
  void Watch(std::vector<RunSlot*> slots, int patience_s) {
    patience_s_ = patience_s;
    thread_ = StartThread([this, slots = std::move(slots)] {
      int signal = 0;
      while (sigwait(&awaited_, &signal) == 0 && signal == SIGHUP) reload_();
      if (signal == SIGUSR2) return;
      if (!begun_.exchange(true)) taken_ = signal;
      const std::string name =
          taken_ == 0 ? "the end of its process" : absl::StrCat("SIG", sigabbrev_np(signal));
      const timespec patience{patience_s_, 0};
      // All slots ask to leave, so that none is given another run while one still waits for its own.
      const bool any = std::any_of(slots.begin(), slots.end(), [](RunSlot* slot) { return slot->serves(); });
      if (any && patience.tv_sec > 0) {
        for (RunSlot* slot : slots) {
          if (!slot->ended()) slot->link().AskToLeave(name);
        }
        if (sigtimedwait(&set_, nullptr, &patience) == SIGUSR2) return;  // they have left
      }
      for (RunSlot* slot : slots) {
        if (slot->ended()) continue;
        slot->link().LeaveRun(absl::StrCat("it was stopped by ", name));
        slot->loop().Stop();
      }
    });
  }
  // Stops the slots as a signal does, because one of them has come to its end. Does nothing once a signal has
  // come. Any thread.
  void StopAll() {
    if (!begun_.exchange(true)) kill(getpid(), SIGTERM);
  }
  // Gives another patience, until a signal has come. Any thread.
  void SetPatience(int patience_s) { patience_s_ = patience_s; }
  // Returns the signal that ended the slots; 0 for none.
  int taken() const { return taken_; }
  // Stops watching. After it no signal reaches a slot; they may be destroyed.
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
  std::atomic<bool> begun_{false};  // true once the slots are being stopped
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_SIGNAL_STOP_H_
