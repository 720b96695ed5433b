#include "worker/shell/late_release.h"

#include <utility>

namespace weft {

Tensor LateRelease::Guard(Tensor tensor) {
  if (tensor.owner == nullptr) return tensor;
  void* const same = tensor.owner.get();
  tensor.owner = std::shared_ptr<void>(
      same, [owner = std::move(tensor.owner), to = std::weak_ptr<Dropped>(dropped_)](void*) mutable {
        const std::shared_ptr<Dropped> dropped = to.lock();
        if (dropped == nullptr) return;
        MutexLock lock(dropped->mu);
        dropped->owners.push_back(std::move(owner));
      });
  return tensor;
}

std::shared_ptr<void> LateRelease::TakeDropped() {
  MutexLock lock(dropped_->mu);
  if (dropped_->owners.empty()) return nullptr;
  return std::make_shared<std::vector<std::shared_ptr<void>>>(std::exchange(dropped_->owners, {}));
}

}  // namespace weft
