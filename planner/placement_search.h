// Finds where the layers of a chain go, and the pattern of least period there.
//
// Among ranks that are alike, a placement is a partition of the layers: layers are put on ranks in order, and
// a new rank is always the next one of its kind. Every placement has a bound, the most that one rank or one
// link has to do, and the placements are tried in the order of their bounds, each for a pattern that is
// better than the best one so far (least_period.h). The search begins with contiguous cuts (pipedream.h) and
// with layers packed by size, so that a good answer is there at once. It is exact where all placements below
// the best bound could be listed and decided; else the bound that it returns says how far from it the answer
// may be, and the best placement is changed by one move or two, of a layer or of two that change places, as
// long as that helps. As long as no known placement fits, moves look for one that needs less memory first.
// A window of several micro-batches may begin with the best pattern found of one, repeated. Pure.
#ifndef WEFT_PLANNER_PLACEMENT_SEARCH_H_
#define WEFT_PLANNER_PLACEMENT_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "planner/chain.h"
#include "planner/least_period.h"

namespace weft {

struct PlacementSearchOptions {
  int batches = 1;          // in a window of the pattern
  bool contiguous = false;  // only stages of neighbouring layers, one a rank
  size_t listed = 200'000;  // most placements that are listed
  SearchLimits limits = {std::numeric_limits<int64_t>::max(), [] { return false; }};
  // Stops the search of a window of one micro-batch, with which a larger window begins.
  std::function<bool()> stop_single = [] { return true; };
};

struct PlacedPattern {
  Placement placement;
  ChainPattern placed;
  Pattern pattern;
};

struct PlacementSearchResult {
  std::optional<PlacedPattern> best;
  int64_t lower_bound = 0;  // on the period of a window; kNoPeriod where nothing fits, however slow
  bool proven() const { return best.has_value() && best->pattern.period == lower_bound; }
};

// Requires a sound chain (CheckChain).
PlacementSearchResult FindPlacement(const PlannedChain& chain, const PlacementSearchOptions& options);

// Returns the least memory of a rank with which some placement has a pattern, or a memory that is enough
// where there are too many placements to try, or the limits stop the search.
int64_t LeastMemoryThatFits(const PlannedChain& chain, const PlacementSearchOptions& options);

}  // namespace weft

#endif  // WEFT_PLANNER_PLACEMENT_SEARCH_H_
