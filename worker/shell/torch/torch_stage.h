// Runs one stage's passes through LibTorch: weights as leaf tensors over memory that is ours, the graph that
// a forward leaves for its backward, and its gradients. Private to the adapter of LibTorch.
//
// The graph refers to the parameters' storage, not to its bytes, so a fetched copy of the weights can be
// dropped after the forward and another put in its place for the backward. A forward may also leave no graph:
// then only the stage's input stays, and the backward runs the forward again first.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_STAGE_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_STAGE_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/host_offload.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/split_backward.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

// The parameters of a stage as leaf tensors over one flat float32 buffer of the device, or, those that layers
// read in bfloat16, over a narrowed copy of it.
class StageWeights {
 public:
  // `device` outlives this.
  StageWeights(const StageLayout& layout, RankDevice& device, Precision precision);

  // Puts `memory` (flat, of the layout's size, 64-byte aligned) under the parameters. Unbind takes it away;
  // the parameters may not be used until the next Bind.
  void Bind(Tensor memory);
  void Unbind();
  bool bound() const { return memory_.data != nullptr; }
  // Makes the narrowed copy, of class weights, that layers read where they compute in bfloat16. Call it after
  // the bound memory was written, in the device's order of work. Throws c10::OutOfMemoryError.
  void Changed();

  // Counts a reader of these weights, on any thread, until the token is dropped; the token shares ownership
  // too.
  static std::shared_ptr<void> Use(std::shared_ptr<StageWeights> weights);
  bool in_use() const { return users_.load(std::memory_order_acquire) != 0; }

  const Tensor& memory() const { return memory_; }
  // Returns the storages of all parameters.
  std::array<const c10::StorageImpl*, 2> storages() const {
    return {storage_.unsafeGetStorageImpl(), narrow_storage_.unsafeGetStorageImpl()};
  }
  float* data() const { return static_cast<float*>(memory_.data); }
  const std::vector<at::Tensor>& parameters() const { return leaves_->parameters; }

  // The parameters as the leaves of graphs that are made on one lane of the device, and the ends of these
  // graphs at them. A tensor holds its own end weakly, and would make one anew in each forward that finds no
  // other graph's. An end belongs to the stream that it was made on: gradients that come to it on another one
  // would make that stream wait for this, in the middle of a pair or of a capture.
  struct Leaves {
    int lane = 0;
    std::vector<at::Tensor> parameters;
    torch::autograd::edge_list ends;
  };
  // Returns the leaves of the lane of the calling thread's job. They stay.
  const Leaves& leaves();

 private:
  std::unique_ptr<const Leaves> MakeLeaves() const;

  RankDevice& device_;
  const int64_t narrow_elements_;  // elements of the narrowed copy; 0 where layers read the memory itself
  const std::vector<ParameterSlot> slots_;
  c10::Storage storage_, narrow_storage_;
  const std::unique_ptr<const Leaves> leaves_;
  Mutex mutex_;
  std::vector<std::unique_ptr<const Leaves>> of_other_lanes_ ABSL_GUARDED_BY(mutex_);
  Tensor memory_, narrow_;
  std::atomic<int> users_{0};
};

class CapturedPass;

// The tensors and the graph that a forward leaves for its backward.
struct Pass {
  std::shared_ptr<StageWeights> weights;         // null where the backward brings them to a forward run again
  std::shared_ptr<void> use;                     // use of held weights
  const StageWeights::Leaves* leaves = nullptr;  // leaves of the weights, where the graph ends
  // True if the weights are a copy that comes again with the backward.
  bool fetched = false;
  std::vector<at::Tensor> inputs;  // inputs, without a graph only; data is read again
  // The graph's two ends: where the inputs enter, and the output.
  std::vector<torch::autograd::Edge> input_edges;
  torch::autograd::Edge output;
  at::Tensor output_gradient;              // kept between the two halves of a split backward
  std::vector<PathNode> path;              // likewise
  OffloadedTensors offloaded;              // saved tensors of the graph, where it waits in the host's memory
  std::shared_ptr<CapturedPass> captured;  // captured pass in place of a graph

  bool has_graph() const { return output.is_valid() || !path.empty() || captured != nullptr; }
};

struct PassOutput {
  at::Tensor activation;  // undefined for the last stage
  at::Tensor loss;        // loss of the last stage, a scalar of the device
};

// Run layers [layout.first_layer, layout.end_layer) on `inputs`, the stage's and the data last if it reads
// that, with `pass->weights`. `targets` is defined for the last stage only, where the model has no loss of
// its own. RunForward leaves the graph in `pass`; RunWithoutGraph leaves nothing, and gives the same bits.
PassOutput RunForward(const std::vector<std::unique_ptr<Layer>>& layers, const StageLayout& layout,
                      const std::vector<at::Tensor>& inputs, const at::Tensor& targets, const MaskKey& key,
                      Pass* pass);
PassOutput RunWithoutGraph(const std::vector<std::unique_ptr<Layer>>& layers, const StageLayout& layout,
                           const std::vector<at::Tensor>& inputs, const at::Tensor& targets,
                           const MaskKey& key, const Pass& pass);

enum class PassHalf : uint8_t { kBoth, kInput, kWeight };
struct PassGradients {
  std::vector<at::Tensor> inputs;      // none for kWeight
  std::vector<at::Tensor> parameters;  // contiguous, in the order of slots; empty for kInput
};
PassGradients RunBackward(Pass& pass, const at::Tensor& output_gradient, PassHalf half);

// Return the same bytes, as the other library's tensor, on the device that `tensor.place` says: `device`, or
// the host. `Wrap` aborts if the shape does not fit the bytes.
at::Tensor Wrap(const Tensor& tensor, c10::Device device);
Tensor Unwrap(const at::Tensor& contiguous);
c10::ScalarType TorchType(DataType type);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_STAGE_H_
