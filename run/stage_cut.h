// Cuts the layers of a model into stages, and links the stages of a cut.
//
// A stage is a run of consecutive layers, and passes on the output of its last layer alone. So a tied
// parameter, a layer that other stages read, is a stage by itself. As a user writes a cut, such layers count
// with the first stage; the stages that are made of them share its rank
// (schedules/families/leading_stages.h). Pure.
#ifndef WEFT_RUN_STAGE_CUT_H_
#define WEFT_RUN_STAGE_CUT_H_

#include <vector>

#include "absl/status/status.h"
#include "run/layer_spec.h"

namespace weft {

// Cuts the layers into `stages` consecutive parts, so that each passes on the output of its last layer only
// and the largest part's FLOPs are least (exact, by dynamic programming; ties cut early). Requires 1 <=
// stages
// <= layers.size(). Returns the number of layers of each stage, or nothing if there is no such cut.
std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages);

// Returns the number of layers at the front that hand out a tied parameter each: the output has no samples.
int TiedLayers(const std::vector<LayerCount>& layers);

// A cut as a run has it.
struct StageCut {
  std::vector<int> layers_of_stage;
  // Stages at the front that are a tied parameter each, and share the rank of the stage behind them.
  int tied_stages = 0;

  // Returns the cut as users write it: tied layers count with the first stage.
  std::vector<int> AsWritten() const;
};

// Makes the stages of a cut as users write it: where its first stage has tied layers that other stages read,
// each of them becomes a stage.
StageCut WithTiedStages(const std::vector<LayerCount>& layers, std::vector<int> as_written);

// Cuts the layers into `stages` beside those of tied parameters. Without tied parameters the cut is that of
// CutStages, which runs keep to when they are resumed. With them, of the cuts whose largest part is least it
// is the one with the least sum of the parts' squares, so that an embedding is no stage by itself where
// another cut is as good. Requires 1 <= stages <= MostStages(layers). Returns no stage if there is no such
// cut.
StageCut CutBesideTied(const std::vector<LayerCount>& layers, int stages);
int MostStages(const std::vector<LayerCount>& layers);

// Returns what remains of the layers when tied ones are joined to the one behind them: what a planner cuts.
std::vector<LayerCount> JoinTiedLayers(const std::vector<LayerCount>& layers);

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
