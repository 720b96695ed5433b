// Captures passes of a stage once and replays them: a device with graphs does in one launch what takes
// hundreds otherwise.
//
// A CapturedPass is a forward and its backward over buffers that stay where they are: inputs, data, targets
// and the output's gradient are copied in, seeds and the loss's divisor written (pass_numbers.h), activations
// and input gradients copied out, and the gradients of parameters are read where they lie. One serves one
// micro-batch at a time, from its forward to the end of its backward, so a stage has as many as it had
// micro-batches alive at once. They are captured when a stage has run some passes without, in the forward
// that finds none idle, and hold for weights that stay in their place and for the lane that they were
// captured on: where these change, passes are captured anew, some times. Before the first on a thread and
// lane the pass runs there once without, so that libraries, which keep things by thread and stream, make
// nothing at first use in a capture.
//
// The kernels and their order are those of the pass that is not captured, and so are the bits. A pass that
// moves activations elsewhere is not captured: the caller sees to that. If a layer of the stage says that it
// must not be captured, or the device fails to capture a pass, for lack of memory or because of what a model
// does, one line per stage on standard error says so, and the stage runs without from then on. Private to the
// adapter of LibTorch. Threads: as RankCompute's; a pass may be taken while another one's backward runs.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_GRAPHS_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_GRAPHS_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/torch/pass_numbers.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_layers.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

// The parts that a stage's passes have in common.
struct PassShape {
  const std::vector<std::unique_ptr<Layer>>& layers;
  const StageLayout& layout;
  at::Tensor loss_gradient;  // start of the last stage's backward
  bool split_backward = false;
};

class CapturedPass {
 public:
  // Captures a pass with these weights, over inputs and targets of these sizes, having run it without if
  // `warm`. Returns null if the device does not capture now. Failure: of RankDevice::Capture.
  static absl::StatusOr<std::shared_ptr<CapturedPass>> Capture(RankDevice& device, const PassShape& shape,
                                                               std::shared_ptr<StageWeights> weights,
                                                               const std::vector<at::Tensor>& inputs,
                                                               const at::Tensor& targets, bool warm);

  PassOutput Forward(const std::vector<at::Tensor>& inputs, const at::Tensor& targets, const MaskKey& key);
  // Runs the backward. The gradients of parameters hold until this pass is used again.
  PassGradients Backward(const at::Tensor& output_gradient, PassHalf half);

  // The place that it was captured for: the memory of the parameters, and the lane.
  struct Place {
    std::vector<const void*> parameters;
    int lane = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  // Returns the place on the calling thread's lane.
  static Place PlaceOf(const RankDevice& device, const StageWeights& weights);
  const Place& place() const { return place_; }

 private:
  CapturedPass(RankDevice& device, const PassShape& shape);
  MaskKey CapturedKey();
  void WarmUp(const PassShape& shape);
  void MakeOutputGradient(const PassShape& shape, const PassOutput& output);
  absl::StatusOr<bool> CaptureAll(const PassShape& shape);
  // The backward, or the halves that the run uses.
  struct Half {
    PassHalf half;
    std::unique_ptr<CapturedWork> work;  // null where there is nothing to do
    PassGradients gradients;
  };

  RankDevice& device_;
  Place place_;
  PassNumbers numbers_;
  std::vector<at::Tensor> inputs_;
  at::Tensor targets_, output_gradient_;
  // The results of the captured work, each time in the same place.
  Pass pass_;
  PassOutput output_;
  std::vector<Half> halves_;
  std::unique_ptr<CapturedWork> forward_;
};

// The captured passes of one stage.
class StageGraphs {
 public:
  explicit StageGraphs(RankDevice& device) : device_(device) {}

  // Returns a pass for these weights, which nobody else has until Return; null where the pass is to run
  // without.
  std::shared_ptr<CapturedPass> Take(const PassShape& shape, const std::shared_ptr<StageWeights>& weights,
                                     const std::vector<at::Tensor>& inputs, const at::Tensor& targets);
  void Return(std::shared_ptr<CapturedPass> pass);

  // Counts a pass that ran without, to the end of its backward; and notes the bytes that its forward kept,
  // since captured ones keep as many.
  void CountEager() { eager_.fetch_add(1, std::memory_order_relaxed); }
  void set_activation_bytes(int64_t bytes) { activation_bytes_.store(bytes, std::memory_order_relaxed); }
  int64_t activation_bytes() const { return activation_bytes_.load(std::memory_order_relaxed); }

 private:
  absl::StatusOr<std::shared_ptr<CapturedPass>> Capture(const PassShape& shape,
                                                        const std::shared_ptr<StageWeights>& weights,
                                                        const std::vector<at::Tensor>& inputs,
                                                        const at::Tensor& targets);
  bool BearsRefusal();
  void Refuse(int stage, const absl::Status& why);

  RankDevice& device_;
  std::atomic<int> eager_{0};
  std::atomic<int64_t> activation_bytes_{0};
  Mutex mutex_;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  int changes_ ABSL_GUARDED_BY(mutex_) = 0;            // number of changes of place_
  CapturedPass::Place place_ ABSL_GUARDED_BY(mutex_);  // place that idle_ was captured for
  std::vector<std::shared_ptr<CapturedPass>> idle_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, int>> warm_ ABSL_GUARDED_BY(mutex_);  // threads and lanes
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_GRAPHS_H_
