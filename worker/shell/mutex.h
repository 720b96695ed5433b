// std::mutex with the annotations of clang's thread-safety analysis.
//
// absl::Mutex has them too, but the lock of a prebuilt Abseil is invisible to ThreadSanitizer, which then
// reports each access under it as a race. std::mutex is a pthread mutex, which it knows.
#ifndef WEFT_WORKER_SHELL_MUTEX_H_
#define WEFT_WORKER_SHELL_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace weft {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
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

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MUTEX_H_
