// Pipelines of one stage a rank with a fused backward: gpipe (arXiv 1811.06965) and 1f1b (arXiv 1806.03377,
// synchronous).
#include "schedules/families/family.h"

namespace weft {
namespace {

absl::StatusOr<Schedule> GPipe(const FamilyParameters&, int stages, int microbatches) {
  Schedule s = SizedSchedule("gpipe", stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.priority = PriorityByMicrobatch(stages, microbatches, true);
  return s;
}

// The limit is what makes it 1f1b: priorities alone let stage s run up to min(B, 2(S-1-s)+1) forwards ahead.
absl::StatusOr<Schedule> OneForwardOneBackward(const FamilyParameters&, int stages, int microbatches) {
  Schedule s = SizedSchedule("1f1b", stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  s.limit = [stages](Rank, int stage) -> std::optional<int> { return stages - stage; };
  return s;
}

}  // namespace

std::vector<FamilyEntry> PipelineFamilies() {
  return {
      {{"1f1b", "pipeline, one forward one backward: at most S - s activations on stage s", {}},
       OneForwardOneBackward},
      {{"gpipe", "pipeline, all forwards before the backwards", {}}, GPipe},
  };
}

}  // namespace weft
