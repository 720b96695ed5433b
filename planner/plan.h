// Plans a chain: the best pattern that fits, with the stages that it needs.
//
// Neighbouring layers on one rank become one stage where that costs nothing: a stage runs its layers as a
// unit and keeps what all of them keep from the start of its forward to the end of its backward. Chains of
// many layers are searched in stages from the beginning. Pure.
#ifndef WEFT_PLANNER_PLAN_H_
#define WEFT_PLANNER_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/chain.h"
#include "planner/placement_search.h"

namespace weft {

struct Plan {
  int batches = 1;                // micro-batches of a window
  std::vector<int> stage_layers;  // layers of each stage
  Placement rank_of_stage;
  ChainPattern placed;  // of the stages
  Pattern pattern;
  int64_t lower_bound = 0;  // on the window's period
  std::vector<int64_t> peak_bytes;
  bool proven() const { return pattern.period == lower_bound; }
};

// Returns the best plan found; nothing where no placement fits the memory, or none was found in time.
// Requires a sound chain (CheckChain).
std::optional<Plan> FindPlan(const PlannedChain& chain, const PlacementSearchOptions& options);

// Returns the chain whose layers are the stages of so many layers each.
PlannedChain JoinedChain(const PlannedChain& chain, const std::vector<int>& stage_layers);

}  // namespace weft

#endif  // WEFT_PLANNER_PLAN_H_
