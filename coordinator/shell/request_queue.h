// Hands requests to a thread that answers them one by one: what takes long, or waits for a disk, off the
// loop.
//
// Threads: any; Take is of the thread that answers. After Stop, Take returns nothing and TakeRest has what
// was not taken, so that nobody waits for an answer in vain.
#ifndef WEFT_COORDINATOR_SHELL_REQUEST_QUEUE_H_
#define WEFT_COORDINATOR_SHELL_REQUEST_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {

template <class Request>
class RequestQueue {
 public:
  explicit RequestQueue(size_t most = SIZE_MAX) : most_(most) {}

  // Adds a request. Returns false, and leaves the request as it is, if as many wait as may.
  bool Add(Request& request) {
    MutexLock lock(mu_);
    if (waiting_.size() >= most_) return false;
    waiting_.push_back(std::move(request));
    wake_.Signal();
    return true;
  }

  // Waits for the next request; nothing after Stop.
  std::optional<Request> Take() {
    std::optional<Request> request;
    MutexLock lock(mu_);
    while (!stopped_ && waiting_.empty()) wake_.Wait(mu_);
    if (!stopped_) {
      request.emplace(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return request;
  }

  void Stop() {
    MutexLock lock(mu_);
    stopped_ = true;
    wake_.SignalAll();
  }

  std::deque<Request> TakeRest() {
    MutexLock lock(mu_);
    return std::exchange(waiting_, {});
  }

 private:
  const size_t most_;
  Mutex mu_;
  CondVar wake_;
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_REQUEST_QUEUE_H_
