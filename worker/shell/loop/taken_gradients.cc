#include "worker/shell/loop/taken_gradients.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {

class TakenGradients::Notes {
 public:
  void Add(const TakenGradient& gradient) {
    MutexLock lock(mutex_);
    taken_.push_back(gradient);
    any_.store(true, std::memory_order_release);
  }
  std::vector<TakenGradient> Take() {
    if (!any_.load(std::memory_order_acquire)) return {};
    MutexLock lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(taken_, {});
  }

 private:
  std::atomic<bool> any_{false};  // lets Take skip the lock
  Mutex mutex_;
  std::vector<TakenGradient> taken_ ABSL_GUARDED_BY(mutex_);
};

TakenGradients::TakenGradients() : notes_(std::make_shared<Notes>()) {}

void TakenGradients::Follow(const TakenGradient& gradient, Tensor* tensor) {
  void* const bytes = tensor->owner.get();
  auto end = [notes = notes_, gradient, owner = std::move(tensor->owner)](void*) mutable {
    owner.reset();  // first: the note says that the memory is free
    notes->Add(gradient);
  };
  tensor->owner = std::shared_ptr<void>(bytes, std::move(end));
}

std::vector<TakenGradient> TakenGradients::Take() { return notes_->Take(); }

}  // namespace weft
