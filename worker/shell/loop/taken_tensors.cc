#include "worker/shell/loop/taken_tensors.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {

class TakenTensors::Notes {
 public:
  void Add(const TakenTensor& note) {
    MutexLock lock(mutex_);
    taken_.push_back(note);
    any_.store(true, std::memory_order_release);
  }
  std::vector<TakenTensor> Take() {
    if (!any_.load(std::memory_order_acquire)) return {};
    MutexLock lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(taken_, {});
  }

 private:
  std::atomic<bool> any_{false};  // lets Take skip the lock
  Mutex mutex_;
  std::vector<TakenTensor> taken_ ABSL_GUARDED_BY(mutex_);
};

TakenTensors::TakenTensors() : notes_(std::make_shared<Notes>()) {}

void TakenTensors::Follow(const TakenTensor& note, Tensor* tensor) {
  void* const bytes = tensor->owner.get();
  auto end = [notes = notes_, note, owner = std::move(tensor->owner)](void*) mutable {
    owner.reset();  // first: the note says that the memory is free
    notes->Add(note);
  };
  tensor->owner = std::shared_ptr<void>(bytes, std::move(end));
}

std::vector<TakenTensor> TakenTensors::Take() { return notes_->Take(); }

}  // namespace weft
