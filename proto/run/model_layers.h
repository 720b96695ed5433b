// A model as layers, counted: which layers each reads, floating-point operations, parameters and output of
// each, without any tensor.
//
// Layers stand in an order in which each reads earlier ones only; in most models they are a chain. A stage is
// some consecutive layers of this order, and hands on the output of its last one alone. This is what cutting
// into stages, predicting memory and bytes, and checking a run file need; the compute adapter builds the same
// layers, in the same order and with the same parameter counts (a test compares them). Pure.
#ifndef WEFT_PROTO_RUN_MODEL_CHAIN_H_
#define WEFT_PROTO_RUN_MODEL_CHAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/run/model_spec.h"
#include "proto/run/precision.h"

namespace weft {

struct LayerCount {
  std::string name;             // "embedding", "block0", .., "head"; "linear0", ..
  std::vector<int> inputs;      // the layers that it reads, ascending; none for the data
  double forward_flops = 0;     // a sample; a multiply-add counts 2
  int64_t parameters = 0;       // elements that are trained
  std::vector<int64_t> output;  // sizes, of a sample; none for the last layer, whose output is the loss
  // Bytes that a forward leaves for its backward: its output and what else is saved, its input not. Those of
  // a sample, and those of a micro-batch of any size at most (statistics, the alignment of tensors).
  int64_t left_bytes = 0, left_fixed = 0;
  // Elements that lie with the parameters and are not trained: running averages of batch norms.
  int64_t statistics = 0;
  // Bytes of a sample that one operation takes while it runs, besides its inputs and outputs.
  int64_t work_bytes = 0;

  int64_t output_elements() const;  // of a sample; 0 for the last layer
};

// Bytes are those of computing in `precision`.
std::vector<LayerCount> CountLayers(const ModelSpec& model, Precision precision = Precision::kFloat32);

// Cuts the layers into `stages` consecutive parts, so that each hands on the output of its last layer only
// and the largest part's FLOPs are least (exact, by dynamic programming; ties cut early). Requires 1 <=
// stages <= layers.size(). Returns the number of layers of each stage, or nothing if there is no such cut.
std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages);

// InvalidArgument, naming the layers, if a layer that is not the last of its stage is read by another stage.
absl::Status CheckCut(const std::vector<LayerCount>& layers, const std::vector<int>& layers_of_stage);

// A stage of a cut, and what joins it to the others.
struct StageLinks {
  int first_layer = 0, end_layer = 0;
  std::vector<int> inputs;  // layers of other stages that it reads, ascending; each the last of its own
  bool reads_data = false;
  int consumers = 0;  // stages that read its output
};
// One for each stage of a cut that CheckCut allows.
std::vector<StageLinks> LinkStages(const std::vector<LayerCount>& layers,
                                   const std::vector<int>& layers_of_stage);

// The stages that each stage reads, ascending; as a chain's it is empty (schedules/schedule.h).
std::vector<std::vector<int>> StageInputs(const std::vector<LayerCount>& layers,
                                          const std::vector<int>& layers_of_stage);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_MODEL_CHAIN_H_
