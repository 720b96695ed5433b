// Cuts the layers of a model into stages, and links the stages of a cut.
//
// A stage is a run of consecutive layers, and passes on the output of its last layer alone. Pure.
#ifndef WEFT_RUN_STAGE_CUT_H_
#define WEFT_RUN_STAGE_CUT_H_

#include <vector>

#include "absl/status/status.h"
#include "run/layer_spec.h"

namespace weft {

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

#endif  // WEFT_RUN_STAGE_CUT_H_
