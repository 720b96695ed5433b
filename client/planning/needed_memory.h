// Finds how much memory a choice needs, and changes the choice so that it needs less. Pure.
#ifndef WEFT_CLIENT_PLANNING_NEEDED_MEMORY_H_
#define WEFT_CLIENT_PLANNING_NEEDED_MEMORY_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/planning/plan_choice.h"

namespace weft {

// A choice, and bytes of each rank with which it is predicted to fit.
struct NeededMemory {
  PlanChoice choice;
  double bytes = 0;
};

// Returns what the choice needs, to a part in 4096 of what it has without a limit, or a memory that is enough
// where `stop` returns true before. Returns nothing where that is not below `below` by more than that, where
// no memory would do, or where `stop` returns true before any is known.
std::optional<double> BytesNeeded(const PlanChoice& choice, double below, const PredictWithin& predict,
                                  const std::function<bool()>& stop);

// Moves layers over cuts and changes the activations of stages as long as the choice needs less, until it
// fits into `memory` or `stop` returns true.
NeededMemory NeedLess(NeededMemory choice, const std::vector<std::string>& policies, double memory,
                      const PredictWithin& predict, const std::function<bool()>& stop);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_NEEDED_MEMORY_H_
