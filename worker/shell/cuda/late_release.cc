#include "worker/shell/cuda/late_release.h"

#include <utility>

namespace weft {

struct LateRelease::Guarded {
  std::shared_ptr<void> owner;
  std::weak_ptr<Dropped> to;
  void operator()(void*) {
    const std::shared_ptr<Dropped> dropped = to.lock();
    if (dropped == nullptr) return;
    MutexLock lock(dropped->mu);
    dropped->owners.push_back(std::move(owner));
  }
};

Tensor LateRelease::Guard(Tensor tensor) {
  const auto* const before = std::get_deleter<Guarded>(tensor.owner);
  if (before != nullptr && before->to.lock() == dropped_) return tensor;
  void* const same = tensor.owner.get();
  tensor.owner = std::shared_ptr<void>(same, Guarded{std::move(tensor.owner), dropped_});
  return tensor;
}

std::vector<std::shared_ptr<void>> LateRelease::TakeDropped() {
  MutexLock lock(dropped_->mu);
  return std::exchange(dropped_->owners, {});
}

}  // namespace weft
