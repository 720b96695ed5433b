#include "worker/shell/torch/spare_weights.h"

#include <utility>

namespace weft {

std::shared_ptr<StageWeights> SpareWeights::Take() {
  {
    MutexLock lock(mutex_);
    if (!kept_.empty()) {
      std::shared_ptr<StageWeights> unbound = std::move(kept_.back());
      kept_.pop_back();
      return unbound;
    }
  }
  return std::make_shared<StageWeights>(layout_, device_, precision_);
}

void SpareWeights::Give(std::shared_ptr<StageWeights> unbound) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(unbound));
}

}  // namespace weft
