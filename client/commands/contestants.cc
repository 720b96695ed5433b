#include "client/commands/contestants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/files/predicted_run.h"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"
#include "schedules/families/candidates.h"

namespace weft {
namespace {

Candidate CandidateOf(const ScheduleSpec& spec) { return {spec.name, spec.parameters, spec.rule}; }

// Returns the run under the schedule, cut as the options say.
absl::StatusOr<RunSpec> RunUnder(const RunSpec& run, const ScheduleSpec& schedule,
                                 const ContestantOptions& options) {
  RunSpec under = run;
  under.schedule = schedule;
  if (options.stages > 0) {
    auto cut = Recut(under, options.stages);
    if (!cut.ok()) return cut;
    under = *std::move(cut);
  } else if (options.ranks > 0) {
    const SizedCandidate sized = OnRanks(CandidateOf(schedule), options.ranks, run.train.microbatches,
                                         static_cast<int>(CountLayers(run.model, run.precision).size()));
    if (!sized.reason.empty()) return absl::InvalidArgumentError(sized.reason);
    auto cut = Recut(under, sized.stages);
    if (!cut.ok()) return cut;
    under = *std::move(cut);
  }
  if (options.ranks == 0) return under;
  const auto made = MakeSchedule(schedule, under.stages(), under.train.microbatches);
  if (made.ok() && made->scheme.ranks != options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("takes ", made->scheme.ranks, " ranks for ",
                                                   under.stages(), " stages, not ", options.ranks));
  }
  return under;
}

// Returns a candidate's specification, with the run's own settings where schedules leave them open.
ScheduleSpec SpecOf(const Candidate& candidate, const RunSpec& run) {
  ScheduleSpec spec = run.schedule;
  spec.name = candidate.name;
  spec.parameters = candidate.parameters;
  spec.rule = candidate.rule;
  return spec;
}

// Returns the contestants that the user named, in their order.
std::vector<Contestant> Named(const RunSpec& run, const ContestantOptions& options) {
  std::vector<Contestant> contestants;
  const std::string own = ToText(run.schedule);
  for (const std::string& text : options.schedules) {
    for (const std::string& one : SplitSchedules(text)) {
      auto spec = ParseScheduleText(one);
      if (!spec.ok()) {
        contestants.push_back({one, false, spec.status()});
        continue;
      }
      if (spec->activations == ScheduleSpec().activations) spec->activations = run.schedule.activations;
      contestants.push_back({one, ToText(*spec) == own, RunUnder(run, *spec, options)});
    }
  }
  return contestants;
}

void AddOwn(const RunSpec& run, const ContestantOptions& options, std::vector<Contestant>* contestants) {
  const bool there = std::any_of(contestants->begin(), contestants->end(), [](auto& c) { return c.chosen; });
  if (!there) contestants->push_back({ToText(run.schedule), true, RunUnder(run, run.schedule, options)});
}

}  // namespace

absl::Status CheckNamed(const ContestantOptions& options) {
  for (const std::string& text : options.schedules) {
    for (const std::string& one : SplitSchedules(text)) {
      const absl::Status known = ParseScheduleText(one).status();
      if (!known.ok()) return absl::InvalidArgumentError(absl::StrCat("--schedules: ", known.message()));
    }
  }
  return absl::OkStatus();
}

std::vector<Contestant> ContestantsToPredict(const RunSpec& run, const ContestantOptions& options) {
  std::vector<Contestant> contestants = Named(run, options);
  const std::string own = ToText(run.schedule);
  if (contestants.empty() && options.ranks > 0 && options.stages == 0) {
    const int layers = static_cast<int>(CountLayers(run.model, run.precision).size());
    for (const SizedCandidate& sized : CandidatesOnRanks(options.ranks, run.train.microbatches, layers)) {
      const ScheduleSpec spec = SpecOf(sized.candidate, run);
      const std::string text = ToText(spec);
      absl::StatusOr<RunSpec> under =
          sized.reason.empty() ? Recut(run, sized.stages) : absl::InvalidArgumentError(sized.reason);
      if (under.ok()) under->schedule = spec;
      contestants.push_back({text, text == own, std::move(under)});
    }
  } else if (contestants.empty()) {
    const int stages = options.stages > 0 ? options.stages : run.stages();
    for (const Candidate& candidate : Candidates(stages, run.train.microbatches)) {
      const ScheduleSpec spec = SpecOf(candidate, run);
      const std::string text = ToText(spec);
      contestants.push_back({text, text == own, RunUnder(run, spec, options)});
    }
  }
  AddOwn(run, options, &contestants);
  return contestants;
}

std::vector<Contestant> ContestantsToMeasure(const RunSpec& run, const ContestantOptions& options) {
  std::vector<Contestant> contestants = Named(run, options);
  if (!contestants.empty()) return contestants;
  AddOwn(run, options, &contestants);
  const std::string own = contestants[0].schedule;
  const auto add = [&](const ScheduleSpec& spec) {
    const std::string text = ToText(spec);
    if (text == own) return;
    auto under = RunUnder(run, spec, options);
    if (under.ok() && CheckedScheduleOf(*under).ok()) contestants.push_back({text, false, std::move(under)});
  };
  if (options.ranks > 0 && options.stages == 0) {
    const int layers = static_cast<int>(CountLayers(run.model, run.precision).size());
    for (const SizedCandidate& sized : CandidatesOnRanks(options.ranks, run.train.microbatches, layers)) {
      if (sized.reason.empty()) add(SpecOf(sized.candidate, run));
    }
    return contestants;
  }
  const int stages = options.stages > 0 ? options.stages : run.stages();
  for (const Candidate& candidate : PlainCandidates(stages, run.train.microbatches)) {
    add(SpecOf(candidate, run));
  }
  return contestants;
}

std::string SizesText(const RunSpec& run, const ContestantOptions& options) {
  const auto count = [](int n, absl::string_view word, absl::string_view plural) {
    return absl::StrCat(n, " ", n == 1 ? word : plural);
  };
  std::string text;
  if (options.stages > 0 || options.ranks == 0) {
    const int stages = options.stages > 0 ? options.stages : run.stages();
    text = absl::StrCat(count(stages, "stage", "stages"), ", ");
  }
  if (options.ranks > 0) absl::StrAppend(&text, count(options.ranks, "rank", "ranks"), ", ");
  return absl::StrCat(text, count(run.train.microbatches, "micro-batch", "micro-batches"));
}

std::vector<std::string> SplitSchedules(const std::string& text) {
  std::vector<std::string> schedules;
  for (const std::string& part : SplitAtCommas(text)) {
    if (schedules.empty() || !absl::StrContains(part, '=')) {
      schedules.push_back(part);
    } else {
      absl::StrAppend(&schedules.back(), ",", part);
    }
  }
  return schedules;
}

}  // namespace weft
