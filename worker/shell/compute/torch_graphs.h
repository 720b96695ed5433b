// Passes of a stage that are captured once and replayed: what a device with graphs does in one launch instead
// of hundreds.
//
// A CapturedPass is a forward and its backward over buffers that stay where they are: inputs, data, targets
// and the output's gradient are copied in, the seeds of dropout's masks written (MaskSeeds), activations and
// input gradients copied out, and the gradients of parameters are read where they lie. One serves one
// micro-batch at a time, from its forward to the end of its backward, so a stage has as many as it had
// micro-batches alive at once. They are captured when a stage has run some passes without, in the forward
// that finds none idle, and hold for weights that stay in their place: where these come to lie elsewhere,
// passes are captured anew, some times.
//
// The kernels and their order are those of the pass that is not captured, and so are the bits. What moves
// activations elsewhere is not captured: the caller sees to that. Private to the adapter of LibTorch.
// Threads: as RankCompute's; a pass may be taken while another one's backward runs. Failure: of
// RankDevice::Capture.
#ifndef WEFT_WORKER_SHELL_COMPUTE_TORCH_GRAPHS_H_
#define WEFT_WORKER_SHELL_COMPUTE_TORCH_GRAPHS_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "worker/shell/compute/rank_device.h"
#include "worker/shell/compute/torch_layers.h"
#include "worker/shell/compute/torch_stage.h"

namespace weft {

// What a stage's passes have in common.
struct PassShape {
  const std::vector<std::unique_ptr<Layer>>& layers;
  const StageLayout& layout;
  at::Tensor loss_gradient;  // where the last stage's backward starts
  bool split_backward = false;
};

class CapturedPass {
 public:
  // Captures a pass with these weights, over inputs and targets of these sizes. Null where the device does
  // not capture now.
  static absl::StatusOr<std::shared_ptr<CapturedPass>> Capture(RankDevice& device, const PassShape& shape,
                                                               std::shared_ptr<StageWeights> weights,
                                                               const std::vector<at::Tensor>& inputs,
                                                               const at::Tensor& targets);

  PassOutput Forward(const std::vector<at::Tensor>& inputs, const at::Tensor& targets, const MaskKey& key);
  // The gradients of parameters hold until this pass is used again.
  PassGradients Backward(const at::Tensor& output_gradient, PassHalf half);

  // Where the parameters lie that it was captured with.
  using Addresses = std::vector<const void*>;
  static Addresses AddressesOf(const StageWeights& weights);
  const Addresses& addresses() const { return addresses_; }

 private:
  CapturedPass(RankDevice& device, const StageLayout& layout)
      : device_(device), seeds_(device.math(), device.torch_device(), layout.first_layer, layout.end_layer) {}
  absl::StatusOr<bool> CaptureAll(const PassShape& shape, const at::Tensor& targets);
  // The backward, or the halves that the run uses.
  struct Half {
    PassHalf half;
    std::unique_ptr<CapturedWork> work;
    PassGradients gradients;
  };

  RankDevice& device_;
  Addresses addresses_;
  MaskSeeds seeds_;
  std::vector<at::Tensor> inputs_;
  at::Tensor targets_, output_gradient_;
  // What the captured work makes, each time in the same place.
  Pass pass_;
  PassOutput output_;
  std::vector<Half> halves_;
  std::unique_ptr<CapturedWork> forward_;
};

// The captured passes of one stage.
class StageGraphs {
 public:
  explicit StageGraphs(RankDevice& device) : device_(device) {}

  // One for these weights, of which nobody else has it until Return; null where the pass is to run without.
  absl::StatusOr<std::shared_ptr<CapturedPass>> Take(const PassShape& shape,
                                                     const std::shared_ptr<StageWeights>& weights,
                                                     const std::vector<at::Tensor>& inputs,
                                                     const at::Tensor& targets);
  void Return(std::shared_ptr<CapturedPass> pass);

  // A pass that ran without, to the end of its backward; and what its forward left: captured ones leave as
  // much.
  void CountEager() { eager_.fetch_add(1, std::memory_order_relaxed); }
  void set_left_bytes(int64_t bytes) { left_bytes_.store(bytes, std::memory_order_relaxed); }
  int64_t left_bytes() const { return left_bytes_.load(std::memory_order_relaxed); }

 private:
  RankDevice& device_;
  std::atomic<int> eager_{0};
  std::atomic<int64_t> left_bytes_{0};
  Mutex mutex_;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  int changes_ ABSL_GUARDED_BY(mutex_) = 0;                    // of where the weights lie
  CapturedPass::Addresses addresses_ ABSL_GUARDED_BY(mutex_);  // as idle_ was captured with
  std::vector<std::shared_ptr<CapturedPass>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_TORCH_GRAPHS_H_
