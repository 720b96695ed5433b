// Changes a choice by one layer or the activations of one stage, for searches that improve a choice step by
// step. Pure.
#ifndef WEFT_CLIENT_PLANNING_CUT_MOVES_H_
#define WEFT_CLIENT_PLANNING_CUT_MOVES_H_

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/planning/plan_choice.h"
#include "run/schedule_spec.h"

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

// Gives one stage each of the other policies for its activations in turn, likewise.
inline bool ChangePolicy(const PlanChoice& choice, int stage, const std::vector<std::string>& policies,
                         const std::function<bool(const PlanChoice&)>& take) {
  std::vector<std::string> of_stages = SplitActivations(choice.schedule);
  if (of_stages.size() == 1) of_stages.assign(choice.stages(), of_stages[0]);
  const std::string before = of_stages[stage];
  for (const std::string& policy : policies) {
    if (policy == before) continue;
    of_stages[stage] = policy;
    PlanChoice changed = choice;
    const bool same = std::all_of(of_stages.begin(), of_stages.end(), [&](auto& p) { return p == policy; });
    changed.schedule.activations = same ? policy : absl::StrJoin(of_stages, "/");
    if (take(changed)) return true;
  }
  return false;
}

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_CUT_MOVES_H_
