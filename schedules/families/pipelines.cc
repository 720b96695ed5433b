// Pipelines of one stage a rank with a fused backward: gpipe (arXiv 1811.06965), 1f1b (arXiv 1806.03377,
// synchronous), and the two that do not drain between updates and so read old weights: pipedream (arXiv
// 1806.03377) and pipedream_2bw (arXiv 2006.09503).
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/families/family.h"
#include "schedules/families/tie_rule.h"

namespace weft {
namespace {

constexpr int kMostInFlight = 10'000;

absl::StatusOr<Schedule> GPipe(const FamilyParameters& parameters, int stages, int microbatches) {
  Schedule s = SizedSchedule("gpipe", stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  return WithTieRule(kForwardsFirst, "gpipe", parameters, std::move(s));
}

// The number in flight is what makes it 1f1b: priorities alone let stage s run up to min(B, 2(S-1-s)+1)
// forwards ahead.
absl::StatusOr<Schedule> InOneOrder(absl::string_view family, const FamilyParameters& parameters, int stages,
                                    int microbatches) {
  Schedule s = SizedSchedule(family, stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  return WithTieRule(kOneForwardOneBackward, family, parameters, std::move(s));
}

absl::StatusOr<Schedule> OneForwardOneBackward(const FamilyParameters& parameters, int stages,
                                               int microbatches) {
  return InOneOrder("1f1b", parameters, stages, microbatches);
}

// A step is one micro-batch. Stage s reads the weights of S-1-s updates ago, those that are there when the
// micro-batch comes to it in the steady state of one forward, one backward; its backward reads the same. So
// the forward of step t waits for the backward of step t - (S - s): no limit is needed. With another number
// in flight the weights are as many updates old, less one.
absl::StatusOr<Schedule> PipeDream(const FamilyParameters& parameters, int stages, int microbatches) {
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
  const auto in_flight = ReadInFlight("pipedream", parameters, s);
  if (!in_flight.ok()) return in_flight.status();
  if (!*in_flight) return s;
  for (int stage = 0; stage < stages; ++stage) {
    const int number = (*in_flight)(stage, stage).value_or(0);
    if (number >= 1 && number <= kMostInFlight) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "pipedream: in_flight is %d for stage %d; it must be from 1 to %d", number, stage, kMostInFlight));
  }
  s.staleness = [in_flight = *in_flight](int stage, int) { return *in_flight(stage, stage) - 1; };
  absl::StrAppend(&s.name, ",in_flight=", parameters.at("in_flight"));
  return s;
}

// 1f1b that goes on with the next batch while the last one drains, on the weights before that one's update:
// two versions on every stage.
absl::StatusOr<Schedule> PipeDream2Bw(const FamilyParameters& parameters, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = InOneOrder("pipedream_2bw", parameters, stages, microbatches);
  if (!s.ok()) return s;
  s->staleness = [](int, int) { return 1; };
  return s;
}

}  // namespace

std::vector<FamilyEntry> PipelineFamilies() {
  return {
      {{"1f1b", "pipeline; one forward, one backward: at most S - s activations on stage s",
        TieRuleParameters(kOneForwardOneBackward), true},
       OneForwardOneBackward},
      {{"gpipe", "pipeline; all forwards before the backwards", TieRuleParameters(kForwardsFirst), true},
       GPipe},
      {{"pipedream",
        "pipeline that updates after every micro-batch: stage s reads weights S-1-s updates old",
        {InFlightParameter("micro-batches in flight on stage s, which reads weights so many updates old, "
                           "less one; a formula over s (default S - s)")},
        false,
        true},
       PipeDream},
      {{"pipedream_2bw", "1f1b that does not drain between batches, on weights one update old; two versions",
        TieRuleParameters(kOneForwardOneBackward), false, true},
       PipeDream2Bw},
  };
}

}  // namespace weft
