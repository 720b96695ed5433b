// Runs the operations of one exported layer for one device and one number of samples.
//
// Dropout that stands alone, and batch norms, are Weft's own (dropout.h, batch_norm.h). Other operations that
// draw numbers are called with LibTorch's generator of the device at a seed of step, micro-batch and place in
// the layer.
//
// Private to the adapter of LibTorch. A program does not change once it is made, and may run on several
// threads at once. Ownership: the layer's description outlives it. Failure: InvalidArgument or a failed
// reading of constants when it is made; c10::Error with operation and line when it runs.
#ifndef WEFT_WORKER_SHELL_TORCH_GRAPH_PROGRAM_H_
#define WEFT_WORKER_SHELL_TORCH_GRAPH_PROGRAM_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "run/layer_spec.h"
#include "worker/shell/torch/dropout.h"
#include "worker/shell/torch/graph_arguments.h"

namespace weft {

class GraphProgram {
 public:
  // `spec` has the files of the constants, which are not read for a device without bytes.
  static absl::StatusOr<std::unique_ptr<const GraphProgram>> Make(const ExportedLayerSpec& spec,
                                                                  const GraphPlace& place);

  // Returns the layer's output. `given`: what the layer reads, its parameters and its statistics, in their
  // order; `index`: the layer's number, for the masks.
  at::Tensor Run(const std::vector<at::Tensor>& given, const MaskKey& key, int index) const;

  const GraphPlace& place() const { return place_; }

  // Returns why runs must not be captured, with the operation: one that draws by LibTorch's generator, that
  // reads values on the host, or that a plug-in registers, of which nothing is known. OK if they may be.
  absl::Status CheckCapturable() const;
  // Returns how many operations are Dropout's.
  int dropout_sites() const;

 private:
  // An operation that was found in LibTorch, with arguments that are ready.
  struct Step {
    const GraphOperation* operation = nullptr;
    c10::OperatorHandle handle;
    std::vector<ReadyArgument> arguments;
    bool returns_list = false;
    enum class Kind : uint8_t { kCall, kDrawingCall, kDropout, kBatchNorm } kind = Kind::kCall;
    double number = 0;          // a dropout's rate, a batch norm's epsilon
    int site = -1;              // number in the layer of an operation that draws
    std::vector<int> last_use;  // values that no later step reads
  };

  GraphProgram(const ExportedLayer& layer, const GraphPlace& place) : layer_(layer), place_(place) {}

  absl::StatusOr<Step> StepOf(const GraphOperation& operation) const;
  absl::Status Classify(Step* step) const;
  absl::Status CheckBatchNorm(const Step& step) const;
  absl::Status ReadConstants(const ExportedLayerSpec& spec);
  void Fold();
  void KeepWhatIsRead();
  void NoteLastUses();
  void RunStep(const Step& step, const MaskKey& key, int index, std::vector<at::Tensor>* values) const;
  at::Tensor RunBatchNorm(const Step& step, const MaskKey& key, const std::vector<at::Tensor>& values) const;
  void Call(const Step& step, const MaskKey& key, int index, torch::jit::Stack* stack) const;

  const ExportedLayer& layer_;
  const GraphPlace place_;
  std::vector<Step> steps_;
  std::vector<at::Tensor> known_;  // constants, and what depends on them alone, by number
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_GRAPH_PROGRAM_H_
