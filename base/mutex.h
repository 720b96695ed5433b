// Provides a mutex, a condition variable and a notification with the annotations of clang's thread-safety
// analysis.
//
// absl::Mutex has the annotations too, but ThreadSanitizer does not see the lock of a prebuilt Abseil, and
// then reports each access under it as a race. The locks of the standard library are pthread's, which it
// knows.
//
// Lock polls for about a microsecond before it blocks, as absl::Mutex does: most critical sections are
// shorter than going to sleep and being woken. A thread that only sleeps may find the lock taken again each
// time that it wakes, by a thread that leaves it for an instant only.
//
// Condition variables may wake without a signal: wait in a loop. Nothing here allocates or fails.
#ifndef WEFT_BASE_MUTEX_H_
#define WEFT_BASE_MUTEX_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace weft {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    for (int i = 0; i < kPolls; ++i) {
      if (mutex_.try_lock()) return;
      Pause();
    }
    mutex_.lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  static constexpr int kPolls = 40;

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// The waits release the mutex and hold it again when they return.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Adopted lock(mutex);
    condition_.wait(lock.native);
  }

  // Returns true if the time was over first.
  bool WaitWithTimeout(Mutex& mutex, int64_t nanoseconds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Adopted lock(mutex);
    const std::chrono::nanoseconds wait(std::min(nanoseconds, kLongest));
    return condition_.wait_for(lock.native, wait) == std::cv_status::timeout;
  }

  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  static constexpr int64_t kLongest = int64_t{1} << 61;  // 73 years: may be added to any time of the clock

  // Lends the lock that the caller holds to the standard library for one wait.
  struct Adopted {
    explicit Adopted(Mutex& mutex) : native(mutex.mutex_, std::adopt_lock) {}
    ~Adopted() { native.release(); }
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;
    std::unique_lock<std::mutex> native;
  };

  std::condition_variable condition_;
};

// An event that happens once. May be destroyed as soon as a wait for it has returned.
class Notification {
 public:
  void Notify() {
    MutexLock lock(mutex_);
    notified_ = true;
    condition_.SignalAll();
  }

  void Wait() {
    MutexLock lock(mutex_);
    while (!notified_) condition_.Wait(mutex_);
  }

  // Returns false if the time was over first.
  bool WaitWithTimeout(int64_t nanoseconds) {
    const auto start = std::chrono::steady_clock::now();
    MutexLock lock(mutex_);
    while (!notified_) {
      const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start;
      if (passed.count() >= nanoseconds) return false;
      condition_.WaitWithTimeout(mutex_, nanoseconds - passed.count());
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar condition_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft

#endif  // WEFT_BASE_MUTEX_H_
