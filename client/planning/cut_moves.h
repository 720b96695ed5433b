// Changes a cut by one layer, for searches that improve a choice step by step. Pure.
#ifndef WEFT_CLIENT_PLANNING_CUT_MOVES_H_
#define WEFT_CLIENT_PLANNING_CUT_MOVES_H_

#include <functional>

#include "client/planning/plan_choice.h"

namespace weft {

// Moves one layer over each cut in turn, in either direction, and gives the changed choice to `take`, until
// it returns true. Returns whether it did. A stage keeps at least one layer.
inline bool MoveLayer(const PlanChoice& choice, const std::function<bool(const PlanChoice&)>& take) {
  for (int s = 0; s + 1 < choice.stages(); ++s) {
    for (const int by : {1, -1}) {
      PlanChoice changed = choice;
      changed.layers_of_stage[s] += by;
      changed.layers_of_stage[s + 1] -= by;
      if (changed.layers_of_stage[s] < 1 || changed.layers_of_stage[s + 1] < 1) continue;
      if (take(changed)) return true;
    }
  }
  return false;
}

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_CUT_MOVES_H_
