// Describes a model as counted layers: the inputs, floating-point operations, parameters and output of each
// layer, without any tensor.
//
// Layers stand in an order in which each reads earlier ones only; in most models they are a chain. A stage is
// a run of consecutive layers of this order, and passes on the output of its last layer alone. Cutting into
// stages, predicting memory and bytes, and checking a run file need these counts. The compute adapter builds
// the same layers, in the same order and with the same parameter counts (a test compares them). Pure.
#ifndef WEFT_RUN_MODEL_LAYERS_H_
#define WEFT_RUN_MODEL_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "run/model_spec.h"
#include "run/precision.h"

namespace weft {

struct LayerCount {
  std::string name;          // "embedding", "block0", .., "head"; "linear0", ..
  std::vector<int> inputs;   // layers that it reads, ascending; none for the data
  double forward_flops = 0;  // operations per sample; a multiply-add counts 2
  int64_t parameters = 0;    // trained elements
  // Sizes of one sample's output; none for the last layer, whose output is the loss.
  std::vector<int64_t> output;
  // Bytes that a forward keeps for its backward: its output and other saved tensors, without its input.
  // `activation_bytes` are those of a sample. `fixed_activation_bytes` are those of a micro-batch of any size
  // at most (statistics, the alignment of tensors).
  int64_t activation_bytes = 0, fixed_activation_bytes = 0;
  // Elements that lie with the parameters and are not trained: running averages of batch norms.
  int64_t statistics = 0;
  // Bytes that one operation takes while it runs, besides its inputs and outputs. `work_bytes` are those of a
  // sample, `work_fixed` those of a micro-batch of any size (copies of weights in another layout).
  int64_t work_bytes = 0, work_fixed = 0;

  int64_t output_elements() const;  // elements per sample; 0 for the last layer
};

// Counts the layers of a model. Bytes are those of computing in `precision`.
std::vector<LayerCount> CountLayers(const ModelSpec& model, Precision precision = Precision::kFloat32);

// Cuts the layers into `stages` consecutive parts, so that each passes on the output of its last layer only
// and the largest part's FLOPs are least (exact, by dynamic programming; ties cut early). Requires 1 <=
// stages <= layers.size(). Returns the number of layers of each stage, or nothing if there is no such cut.
std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages);

// Checks a cut. InvalidArgument, naming the layers, if another stage reads a layer that is not the last of
// its stage.
absl::Status CheckCut(const std::vector<LayerCount>& layers, const std::vector<int>& layers_of_stage);

// A stage of a cut, and its links to the others.
struct StageLinks {
  int first_layer = 0, end_layer = 0;
  // Layers of other stages that it reads, ascending; each is the last layer of its stage.
  std::vector<int> inputs;
  bool reads_data = false;
  int consumers = 0;  // stages that read its output
};
// Returns one entry for each stage of a cut that CheckCut allows.
std::vector<StageLinks> LinkStages(const std::vector<LayerCount>& layers,
                                   const std::vector<int>& layers_of_stage);

// Returns the stages that each stage reads, ascending; for a chain the list is empty (schedules/schedule.h).
std::vector<std::vector<int>> StageInputs(const std::vector<LayerCount>& layers,
                                          const std::vector<int>& layers_of_stage);

}  // namespace weft

#endif  // WEFT_RUN_MODEL_LAYERS_H_
