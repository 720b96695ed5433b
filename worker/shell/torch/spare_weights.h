// Keeps the parameters of one stage that have no memory under them, for the next fetched copy or version.
//
// A StageWeights is costly to make (a tensor and a graph's end for each parameter) and holds no bytes while
// it is unbound. So those of dropped copies and versions are used again. Everything in here is unbound.
// Private to the adapter of LibTorch. Thread-safe: versions are dropped while passes take fetched copies.
#ifndef WEFT_WORKER_SHELL_TORCH_SPARE_WEIGHTS_H_
#define WEFT_WORKER_SHELL_TORCH_SPARE_WEIGHTS_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "run/run_spec.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

class SpareWeights {
 public:
  // `layout` and `device` outlive this.
  SpareWeights(const StageLayout& layout, RankDevice& device, Precision precision)
      : layout_(layout), device_(device), precision_(precision) {}

  // Returns unbound weights, new ones if none are kept.
  std::shared_ptr<StageWeights> Take();
  // Takes weights back. Requires that they are unbound, and that nobody else will use them.
  void Give(std::shared_ptr<StageWeights> unbound);

 private:
  const StageLayout& layout_;
  RankDevice& device_;
  const Precision precision_;
  Mutex mutex_;
  std::vector<std::shared_ptr<StageWeights>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_SPARE_WEIGHTS_H_
