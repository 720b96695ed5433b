// Carries the releases of arrived tensors from the threads that dropped them to the transport's next
// Progress.
//
// Thread-safe. Arrived tensors share it with the transport; after Close it takes nothing more.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_RELEASE_QUEUE_H_
#define WEFT_WORKER_SHELL_TRANSPORT_RELEASE_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {

class ReleaseQueue {
 public:
  struct Release {
    uint64_t producer;  // sender number of the transport that holds the offer
    uint64_t offer;
  };

  ReleaseQueue();
  ~ReleaseQueue();
  ReleaseQueue(const ReleaseQueue&) = delete;
  ReleaseQueue& operator=(const ReleaseQueue&) = delete;

  void Push(Release release);
  // Moves the waiting releases into `out`, which should be empty: the two swap, so that steady state
  // allocates nothing.
  void Take(std::vector<Release>* out);
  void Close();

  // Returns a descriptor that becomes readable at the first Push after Arm returned true. Arm returns false
  // if there is something to take.
  int event_fd() const { return event_fd_; }
  bool Arm();

 private:
  const int event_fd_;
  // True while there is nothing to take and it is not armed: lets Take skip the lock.
  std::atomic<bool> idle_{true};
  Mutex mutex_;
  std::vector<Release> releases_ ABSL_GUARDED_BY(mutex_);
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;
  bool signal_wanted_ ABSL_GUARDED_BY(mutex_) = false;  // armed, and not signaled since
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_RELEASE_QUEUE_H_
