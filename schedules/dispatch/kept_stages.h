// Counts what each rank keeps whatever it computes: versions of weights, sums of gradients, optimizer's
// states, and gradients that wait for their readers.
//
// This is the only such count. The simulator multiplies it by the bytes of its costs (memory.h), and the
// budget of a run by the bytes of its layers (run/run_memory.h), with one sum where several cannot be
// (run/early_gradients.h). Pure.
#ifndef WEFT_SCHEDULES_DISPATCH_KEPT_STAGES_H_
#define WEFT_SCHEDULES_DISPATCH_KEPT_STAGES_H_

#include <limits>
#include <optional>
#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

// Holds what a rank keeps of one stage.
struct KeptOfStage {
  int stage = 0;
  // Amounts that a holder of the stage keeps; where its state travels (Layout::kTravelling), that every rank
  // on its way keeps.
  std::optional<Kept> kept;
  int part = 0;  // its slice, where holders keep or sum one of `kept->parts` or `kept->parts_of_sum` each
  bool goes_on = false;  // the state travels, and comes to another rank as well
  // Gradients of the stage's size that leave the rank's backwards and may wait together; likewise running
  // sums that it hands on; and those of them that there may be within a budget (sync/given_tensors.h).
  int handed_out = 0, handed_on = 0, handed_on_in_turn = 0;
  bool fetches = false;  // it computes with another rank's weights
};

inline constexpr int kAnySteps = std::numeric_limits<int>::max();

// Returns, by rank, the stages of which it keeps something, ascending. A run of `steps` steps fills no more
// versions and sums than it makes.
std::vector<std::vector<KeptOfStage>> KeptByRanks(const Graph& graph, int steps = kAnySteps);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_KEPT_STAGES_H_
