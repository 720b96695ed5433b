// Pipelines of one stage a rank with a fused backward: gpipe (arXiv 1811.06965), 1f1b (arXiv 1806.03377,
// synchronous), and the two that do not drain between updates and so read old weights: pipedream (arXiv
// 1806.03377) and pipedream_2bw (arXiv 2006.09503).
#include "absl/strings/str_format.h"
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

// A step is one micro-batch. Stage s reads the weights of S-1-s updates ago, those that are there when the
// micro-batch comes to it in the steady state of one forward, one backward; its backward reads the same. So
// the forward of step t waits for the backward of step t - (S - s): no limit is needed.
absl::StatusOr<Schedule> PipeDream(const FamilyParameters&, int stages, int microbatches) {
  if (microbatches != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "pipedream updates the weights after every micro-batch, so a step has one micro-batch, not %d; use 1 "
        "micro-batch and more steps, or pipedream_2bw, which updates once per batch",
        microbatches));
  }
  Schedule s = SizedSchedule("pipedream", stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  s.staleness = [stages](int stage, int) { return stages - 1 - stage; };
  return s;
}

// 1f1b that goes on with the next batch while the last one drains, on the weights before that one's update:
// two versions on every stage.
absl::StatusOr<Schedule> PipeDream2Bw(const FamilyParameters& parameters, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = OneForwardOneBackward(parameters, stages, microbatches);
  s->name = "pipedream_2bw";
  s->staleness = [](int, int) { return 1; };
  return s;
}

}  // namespace

std::vector<FamilyEntry> PipelineFamilies() {
  return {
      {{"1f1b", "pipeline; one forward, one backward: at most S - s activations on stage s", {}, true},
       OneForwardOneBackward},
      {{"gpipe", "pipeline; all forwards before the backwards", {}, true}, GPipe},
      {{"pipedream",
        "pipeline that updates after every micro-batch: stage s reads weights S-1-s updates old",
        {},
        false,
        true},
       PipeDream},
      {{"pipedream_2bw",
        "1f1b that does not drain between batches, on weights one update old; two versions",
        {},
        false,
        true},
       PipeDream2Bw},
  };
}

}  // namespace weft
