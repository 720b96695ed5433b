#include "client/commands/contestants.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/files/predicted_run.h"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "schedules/families/candidates.h"

namespace weft {
namespace {

Candidate CandidateOf(const ScheduleSpec& spec) { return {spec.name, spec.parameters, spec.rule}; }

// Returns whether the schedule is the run's own, whose cut puts it on the ranks that the options ask for.
bool KeepsOwnCut(const RunSpec& run, const ScheduleSpec& schedule, const ContestantOptions& options) {
  if (options.stages > 0 || options.ranks == 0 || ToText(schedule) != ToText(run.schedule)) return false;
  const auto made = MakeSchedule(schedule, run.placed_stages(), run.train.microbatches);
  return made.ok() && made->scheme.ranks == options.ranks;
}

// Returns the run under the schedule, cut as the options say.
absl::StatusOr<RunSpec> RunUnder(const RunSpec& run, const ScheduleSpec& schedule,
                                 const ContestantOptions& options) {
  if (KeepsOwnCut(run, schedule, options)) return run;
  RunSpec under = run;
  under.schedule = schedule;
  if (options.stages > 0) {
    auto cut = Recut(under, options.stages);
    if (!cut.ok()) return cut;
    under = *std::move(cut);
  } else if (options.ranks > 0) {
    const SizedCandidate sized = OnRanks(CandidateOf(schedule), options.ranks, run.train.microbatches,
                                         MostStages(CountLayers(run.model, run.precision)));
    if (!sized.reason.empty()) return absl::InvalidArgumentError(sized.reason);
    auto cut = Recut(under, sized.stages);
    if (!cut.ok()) return cut;
    under = *std::move(cut);
  }
  if (options.ranks == 0) return under;
  const auto made = MakeSchedule(schedule, under.placed_stages(), under.train.microbatches);
  if (made.ok() && made->scheme.ranks != options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("takes ", made->scheme.ranks, " ranks for ",
                                                   under.placed_stages(), " stages, not ", options.ranks));
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

// Returns the schedule's text without its policy for activations.
std::string ChoiceOf(ScheduleSpec spec) {
  spec.activations = ScheduleSpec().activations;
  return ToText(spec);
}

// Returns the contestants that the user named, in their order. `own`: the text of the run file's schedule.
std::vector<Contestant> Named(const RunSpec& run, const ContestantOptions& options, const std::string& own) {
  std::vector<Contestant> contestants;
  for (const std::string& text : options.schedules) {
    for (const std::string& one : SplitSchedules(text)) {
      auto spec = ParseScheduleText(one);
      if (!spec.ok()) {
        contestants.push_back({one, false, spec.status()});
        continue;
      }
      if (spec->activations == ScheduleSpec().activations) spec->activations = run.schedule.activations;
      const std::string shown = options.vary.activations ? ToText(*spec) : one;
      contestants.push_back({shown, ToText(*spec) == own, RunUnder(run, *spec, options), ChoiceOf(*spec)});
    }
  }
  return contestants;
}

int LayersOf(const RunSpec& run) { return MostStages(CountLayers(run.model, run.precision)); }

// Returns the schedules that sizes allow, with the stages that they need.
std::vector<SizedCandidate> SizedCandidates(const RunSpec& run, const ContestantOptions& options) {
  const int microbatches = run.train.microbatches;
  std::vector<SizedCandidate> all;
  if (options.ranks > 0 && options.stages == 0) {
    all = CandidatesOnRanks(options.ranks, microbatches, LayersOf(run));
    for (const Candidate& candidate : OldWeightCandidates(options.ranks, microbatches)) {
      SizedCandidate sized = OnRanks(candidate, options.ranks, microbatches, LayersOf(run));
      if (sized.reason.empty()) all.push_back(std::move(sized));
    }
    return all;
  }
  const int stages = options.stages > 0 ? options.stages : run.placed_stages();
  for (const Candidate& candidate : Candidates(stages, microbatches)) all.push_back({candidate, stages, ""});
  for (const Candidate& candidate : OldWeightCandidates(stages, microbatches)) {
    all.push_back({candidate, stages, ""});
  }
  return all;
}

// Returns every family, and where links are slow also its forms with more micro-batches in flight.
std::vector<Contestant> Unnamed(const RunSpec& run, const ContestantOptions& options,
                                const std::string& own) {
  std::vector<Contestant> contestants;
  const auto add = [&](const SizedCandidate& sized, const std::string& deepens) {
    const ScheduleSpec spec = SpecOf(sized.candidate, run);
    absl::StatusOr<RunSpec> under = run;
    if (!KeepsOwnCut(run, spec, options)) {
      ContestantOptions of_stages = options;
      of_stages.stages = sized.stages;
      under =
          sized.reason.empty() ? RunUnder(run, spec, of_stages) : absl::InvalidArgumentError(sized.reason);
    }
    const std::string text = ToText(spec);
    contestants.push_back({text, text == own, std::move(under), ChoiceOf(spec), deepens});
  };
  for (const SizedCandidate& sized : SizedCandidates(run, options)) {
    add(sized, "");
    if (!options.slow_links || !sized.reason.empty()) continue;
    for (const Candidate& deeper : DeeperCandidates(sized.candidate, run.train.microbatches)) {
      add({deeper, sized.stages, ""}, ChoiceOf(SpecOf(sized.candidate, run)));
    }
  }
  return contestants;
}

// The numbers of stages to try; 0 for the one that needs no new cut.
std::vector<int> CutsToTry(const RunSpec& run, const ContestantOptions& options) {
  if (!options.vary.cuts || options.stages > 0) return {options.stages};
  const int unit = options.ranks > 0 ? options.ranks : run.placed_stages();
  std::set<int> cuts = {(unit + 1) / 2, unit, 2 * unit, 3 * unit, 4 * unit};
  for (int part = 1; options.ranks > 0 && part < unit; ++part) {
    if (unit % part == 0) cuts.insert(part);
  }
  cuts.erase(cuts.upper_bound(LayersOf(run)), cuts.end());
  return {cuts.begin(), cuts.end()};
}

std::vector<int> MicrobatchesToTry(const RunSpec& run, const ContestantOptions& options) {
  const int own = run.train.microbatches;
  std::vector<int> all = {own};
  for (int count = (own + 3) / 4; options.vary.microbatches && count <= 4 * own; ++count) {
    if (count != own && run.train.batch % count == 0) all.push_back(count);
  }
  return all;
}

std::vector<std::string> ActivationsToTry(const RunSpec& run, const ContestantOptions& options) {
  std::vector<std::string> all = {run.schedule.activations};
  for (const char* policy : {"retain", "recompute"}) {
    if (options.vary.activations && policy != run.schedule.activations) all.emplace_back(policy);
  }
  return all;
}

// Returns the run and the options in every size that varies; the run's own first.
std::vector<std::pair<RunSpec, ContestantOptions>> Variations(const RunSpec& run,
                                                              const ContestantOptions& options) {
  std::vector<std::pair<RunSpec, ContestantOptions>> all;
  for (const int microbatches : MicrobatchesToTry(run, options)) {
    for (const int stages : CutsToTry(run, options)) {
      for (const std::string& activations : ActivationsToTry(run, options)) {
        all.emplace_back(run, options);
        all.back().first.train.microbatches = microbatches;
        all.back().first.schedule.activations = activations;
        all.back().second.stages = stages;
      }
    }
  }
  return all;
}

// Tells whether the contestant has the sizes that the user gave.
bool IsOwnSize(const RunSpec& run, const absl::StatusOr<RunSpec>& under, const ContestantOptions& options) {
  if (!options.vary.any() || !under.ok()) return true;
  const bool other_ranks = options.ranks > 0 && !KeepsOwnCut(run, run.schedule, options);
  const bool own_cut = options.stages > 0 || other_ranks || under->placed_stages() == run.placed_stages();
  return own_cut && under->train.microbatches == run.train.microbatches;
}

void AddOwn(const RunSpec& run, const ContestantOptions& options, std::vector<Contestant>* contestants) {
  const bool there = std::any_of(contestants->begin(), contestants->end(), [](auto& c) { return c.chosen; });
  if (there) return;
  contestants->push_back(
      {ToText(run.schedule), true, RunUnder(run, run.schedule, options), ChoiceOf(run.schedule)});
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

absl::Status CheckStages(const RunSpec& run, const ContestantOptions& options) {
  if (options.stages == 0) return absl::OkStatus();
  const absl::Status cut = Recut(run, options.stages).status();
  return cut.ok() ? cut : absl::InvalidArgumentError(absl::StrCat("--stages: ", cut.message()));
}

std::vector<Contestant> ContestantsToPredict(const RunSpec& run, const ContestantOptions& options) {
  std::vector<Contestant> contestants;
  const std::string own = ToText(run.schedule);
  bool chosen = false;
  for (const auto& [under, sizes] : Variations(run, options)) {
    std::vector<Contestant> more = Named(under, sizes, own);
    if (more.empty()) more = Unnamed(under, sizes, own);
    for (Contestant& contestant : more) {
      contestant.chosen = contestant.chosen && !chosen && IsOwnSize(run, contestant.run, options);
      chosen |= contestant.chosen;
      // A schedule that does not take one of the sizes that are tried is no news.
      if (contestant.run.ok() || !options.vary.any()) contestants.push_back(std::move(contestant));
    }
  }
  AddOwn(run, options, &contestants);
  return contestants;
}

std::vector<Contestant> ContestantsToMeasure(const RunSpec& run, const ContestantOptions& options) {
  std::vector<Contestant> contestants = Named(run, options, ToText(run.schedule));
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
    for (const SizedCandidate& sized :
         CandidatesOnRanks(options.ranks, run.train.microbatches, LayersOf(run))) {
      if (sized.reason.empty()) add(SpecOf(sized.candidate, run));
    }
    return contestants;
  }
  const int stages = options.stages > 0 ? options.stages : run.placed_stages();
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
    const int stages = options.stages > 0 ? options.stages : run.placed_stages();
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
