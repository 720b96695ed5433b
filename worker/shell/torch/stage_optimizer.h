// Makes the optimizer's steps for the part of a stage that a rank updates, and keeps the optimizer's state
// between them.
//
// Invariants:
//   1. Once begun or taken over, there are state_buffers() buffers, each of the size of the held part,
//      charged to class optimizer.
//   2. A step reads and writes the state of each element once, whatever the number of parts in which its
//      gradients come: the bits are those of one part.
//   3. steps() counts the steps that were made: a step that is left out changes nothing here.
//
// Lifecycle: without state until Begin or Resume; Release gives the state up, and another one can come. A
// rank that holds weights and does not update them has none. Private to the adapter of LibTorch. One thread
// at a time. Failure: ResourceExhausted of the device, in Begin.
#ifndef WEFT_WORKER_SHELL_TORCH_STAGE_OPTIMIZER_H_
#define WEFT_WORKER_SHELL_TORCH_STAGE_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class StageOptimizer {
 public:
  // Makes the optimizer of the elements `held` of the stage that `layout` describes. All outlive this.
  StageOptimizer(const RunSpec& run, const StageLayout& layout, SliceBounds held, RankDevice& device)
      : run_(run), layout_(layout), held_(held), device_(device), optimizer_(run.train.optimizer) {}

  // Number of buffers that the optimizer needs, and their names in checkpoints.
  int state_buffers() const { return optimizer_.state_buffers(); }
  std::vector<const char*> state_names() const { return optimizer_.state_names(); }

  // Makes the buffers, zeros. Requires that there are none.
  absl::Status Begin();
  // Goes on with a state after so many steps: the buffers that are here, or those of another rank.
  void Resume(int64_t steps) { optimizer_.Resume(steps); }
  void Resume(int64_t steps, std::vector<Tensor> buffers);
  // Gives the buffers up; the number of steps stays.
  std::vector<Tensor> Release();

  const std::vector<Tensor>& buffers() const { return buffers_; }
  int64_t steps() const { return optimizer_.steps(); }

  // Makes the step of the training step `step`: `next`, which may be `weights`, from the summed gradients,
  // which come in parts of the held elements (SliceOf), on the device. `factor` as in Optimizer::Apply.
  void Step(int step, const std::vector<Tensor>& gradients, const float* factor, const float* weights,
            float* next);

 private:
  const RunSpec& run_;
  const StageLayout& layout_;
  const SliceBounds held_;
  RankDevice& device_;
  Optimizer optimizer_;
  std::vector<Tensor> buffers_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_STAGE_OPTIMIZER_H_
