// Provides a worker's session whose other end is the test.
#ifndef WEFT_TESTS_UNIT_SCRIPTED_LINK_H_
#define WEFT_TESTS_UNIT_SCRIPTED_LINK_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {

// The time after which a test gives up.
inline constexpr int64_t kPatience = 60'000'000'000;

// Says the test's messages to the worker, and keeps the worker's.
class ScriptedLink final : public CoordinatorLink {
 public:
  ~ScriptedLink() override { close(event_fd_); }

  void Send(FromWorker message) override {
    if (on_send) on_send(message);
    MutexLock lock(mu_);
    sent_.push_back(std::move(message));
    changed_.SignalAll();
  }
  bool Drain(std::vector<FromCoordinator>* messages) override {
    MutexLock lock(mu_);
    if (ended_) {
      ++looks_at_end_;
      return false;
    }
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(event_fd_, &count, sizeof count);
    for (FromCoordinator& m : to_say_) messages->push_back(std::move(m));
    to_say_.clear();
    return true;
  }
  absl::Status status() const override {
    MutexLock lock(mu_);
    return ended_ ? absl::AbortedError("the coordinator does not know the session") : absl::OkStatus();
  }
  bool Renew(bool) override {
    MutexLock lock(mu_);
    ended_ = false;
    renewed.Notify();
    return true;
  }
  void Arm() override { ++armed_; }
  int event_fd() const override { return event_fd_; }

  void Say(FromCoordinator message) {
    MutexLock lock(mu_);
    to_say_.push_back(std::move(message));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof one);
  }

  // Waits until the worker has taken what was said. Returns false if it does not.
  bool AwaitHeard() {
    const int64_t deadline = MonotonicNow() + kPatience;
    while (MonotonicNow() < deadline) {
      {
        MutexLock lock(mu_);
        if (to_say_.empty()) return true;
      }
      std::this_thread::yield();
    }
    return false;
  }
  // Returns how often a thread of the worker was about to wait for messages.
  int armed() const { return armed_; }
  // Waits until that is more than `before`. Returns false if it does not become more.
  bool AwaitArmed(int before) const {
    const int64_t deadline = MonotonicNow() + kPatience;
    while (armed_ <= before && MonotonicNow() < deadline) std::this_thread::yield();
    return armed_ > before;
  }
  // Ends the session, so that the worker has to renew it.
  void End() {
    MutexLock lock(mu_);
    ended_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof one);
  }
  // Returns how often the worker has looked since then.
  int looks_at_end() const {
    MutexLock lock(mu_);
    return looks_at_end_;
  }

  // Waits until the worker has said a T; returns nothing if it does not.
  template <typename T>
  std::optional<T> Await() {
    const int64_t deadline = MonotonicNow() + kPatience;
    MutexLock lock(mu_);
    while (true) {
      for (; !sent_.empty(); sent_.pop_front()) {
        if (auto* t = std::get_if<T>(&sent_.front())) {
          std::optional<T> found = std::move(*t);
          sent_.pop_front();
          return found;
        }
      }
      const int64_t remaining = deadline - MonotonicNow();
      if (remaining <= 0) return std::nullopt;
      changed_.WaitWithTimeout(mu_, remaining);
    }
  }

  std::function<void(const FromWorker&)> on_send;  // set before the worker sends
  Notification renewed;

 private:
  const int event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::atomic<int> armed_{0};
  mutable Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  int looks_at_end_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<FromCoordinator> to_say_ ABSL_GUARDED_BY(mu_);
  std::deque<FromWorker> sent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_SCRIPTED_LINK_H_
