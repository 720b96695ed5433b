// Computes the norm of a stage's summed gradients, and says what a run does with it: clip the step by it,
// stop at numbers that are not finite, or leave the step out.
//
// The exact sum of squares (sum_of_squares.h) travels from part to part and from stage to stage; its bits
// depend on no order. The host looks at numbers where the device is the host. Another device has its figures
// with the end of the job: a sum is then reported to it, and the factor of a clipped step stays on it.
//
// Statistics have no part in a norm. Private to the adapter of LibTorch. No state of its own; threads as
// RankCompute's. Failure: OutOfRange for numbers that are not finite, where the run stops at them
// (train.non_finite); InvalidArgument for tensors of other sizes.
#ifndef WEFT_WORKER_SHELL_TORCH_GRADIENT_NORM_H_
#define WEFT_WORKER_SHELL_TORCH_GRADIENT_NORM_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class GradientNorm {
 public:
  // All outlive this. `layout` is the stage's.
  GradientNorm(const RunSpec& run, const StageLayout& layout, RankDevice& device)
      : run_(run), layout_(layout), device_(device) {}

  // Returns the sum of squares of `sum`, the gradients of part `part` of `parts`, and of `others`, which are
  // such sums.
  absl::StatusOr<Tensor> SumSquares(const Tensor& sum, int part, int parts,
                                    const std::vector<Tensor>& others) const;

  // Returns one float of the device, by which the gradients of a step with this norm are multiplied; empty
  // for 1.
  absl::StatusOr<Tensor> ClipFactor(const Tensor& norm) const;

  // Returns true if the step's gradients have no norm, and the run leaves its updates out. Only on the host:
  // other devices do not know it in time (torch_device.cc refuses such runs).
  absl::StatusOr<bool> SkipsUpdate(const Tensor& norm) const;

  // Checks that the weights that an update made of `gradients` are finite. `weights` are elements `held` of
  // the stage, `gradients` their parts (SliceOf). A device with memory of its own reports that with the job.
  absl::Status CheckUpdate(SliceBounds held, const std::vector<Tensor>& gradients,
                           const float* weights) const;

 private:
  absl::StatusOr<Tensor> NewSum() const;

  const RunSpec& run_;
  const StageLayout& layout_;
  RankDevice& device_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_GRADIENT_NORM_H_
