#include "schedules/families/family.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace weft {

Schedule SizedSchedule(absl::string_view name, int stages, int microbatches, int ranks) {
  Schedule s;
  s.name = std::string(name);
  s.stages = stages;
  s.microbatches = microbatches;
  s.ranks = ranks;
  return s;
}

absl::StatusOr<int> PositiveParameter(absl::string_view family, const FamilyParameters& parameters,
                                      const std::string& name, std::optional<int> otherwise) {
  const auto it = parameters.find(name);
  if (it == parameters.end()) {
    if (otherwise.has_value()) return *otherwise;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s needs `%s`, as in %s,%s=2", family, name, family, name));
  }
  int value = 0;
  if (!absl::SimpleAtoi(it->second, &value) || value < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is '%s'; it must be a whole number of at least 1", family, name, it->second));
  }
  return value;
}

int64_t PackPriority(const Job& job, int late, int64_t major, int64_t majors, int64_t minor, int64_t minors) {
  return ((int64_t{job.step} * 4 + late) * majors + major) * minors + minor;
}

std::function<int64_t(const Job&)> PriorityByMicrobatch(int stages, int microbatches, bool forward_first) {
  return [=](const Job& j) {
    const bool forward = j.kind == JobKind::kForward;
    const int late = j.kind == JobKind::kBackwardWeight ? 2 : (forward != forward_first ? 1 : 0);
    return PackPriority(j, late, j.microbatch, microbatches, j.stage, stages);
  };
}

absl::StatusOr<int> RanksOfLoop(absl::string_view family, const FamilyParameters& parameters, int stages) {
  absl::StatusOr<int> ranks = PositiveParameter(family, parameters, "ranks");
  if (!ranks.ok()) return ranks.status();
  if (stages % *ranks != 0 || stages == *ranks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d stages on ranks=%d; the number of stages must be 2, 3, .. times the number of ranks, so that "
        "every rank has the same number of stages, at least 2 (for one stage per rank use 1f1b or gpipe)",
        family, stages, *ranks));
  }
  return ranks;
}

absl::StatusOr<Schedule> FoldedSchedule(absl::string_view name, int stages, int microbatches) {
  if (stages % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s folds the stages into a V with two on every rank; %d stages cannot be paired, use an even number",
        name, stages));
  }
  Schedule s = SizedSchedule(name, stages, microbatches, stages / 2);
  s.compute =
      s.weights = [w = stages / 2](const Job& j) { return j.stage < w ? j.stage : 2 * w - 1 - j.stage; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  s.split_backward = true;
  return s;
}

}  // namespace weft
