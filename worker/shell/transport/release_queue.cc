#include "worker/shell/transport/release_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace weft {

ReleaseQueue::ReleaseQueue() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) {
    std::perror("weft: eventfd of the transport");
    std::abort();
  }
}

ReleaseQueue::~ReleaseQueue() { close(event_fd_); }

void ReleaseQueue::Push(Release release) {
  bool signal;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    releases_.push_back(release);
    idle_.store(false, std::memory_order_release);
    signal = std::exchange(signal_wanted_, false);
  }
  // The signal is written outside the lock: the write may hand this core to the thread that it wakes, which
  // wants the lock.
  if (signal) eventfd_write(event_fd_, 1);
}

void ReleaseQueue::Take(std::vector<Release>* out) {
  if (idle_.load(std::memory_order_acquire)) return;
  MutexLock lock(mutex_);
  idle_.store(true, std::memory_order_relaxed);
  if (std::exchange(armed_, false)) {
    // A signal that is written only after this wakes the next wait for nothing, once.
    eventfd_t ignored;
    eventfd_read(event_fd_, &ignored);
    signal_wanted_ = false;
  }
  std::swap(*out, releases_);
}

void ReleaseQueue::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  releases_.clear();
}

bool ReleaseQueue::Arm() {
  MutexLock lock(mutex_);
  if (!releases_.empty()) return false;
  armed_ = signal_wanted_ = true;
  idle_.store(false, std::memory_order_relaxed);
  return true;
}

}  // namespace weft
