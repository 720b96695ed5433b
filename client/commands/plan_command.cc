#include "client/commands/plan_command.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/monotonic_clock.h"
#include "client/files/plan_file.h"
#include "client/files/predicted_run.h"
#include "client/files/profile.h"
#include "client/files/run_file.h"
#include "client/files/schedule_file.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "schedules/byte_text.h"
#include "schedules/simulator/simulate.h"

namespace weft {
namespace {

constexpr int kMaxBatches = 16;
constexpr size_t kMaxLayers = 512;  // of all micro-batches of a window

// Holds what is planned for.
struct Source {
  std::optional<RunSpec> run;  // absent for a profile alone
  Profile profile;
  double memory = 0;
  int microbatches = 0;
};

// The patterns that --schedule asks for.
struct Wanted {
  std::vector<int> batches;  // windows of so many micro-batches, in the order in which they are tried
  bool contiguous = false;
};

absl::StatusOr<Wanted> ParseWanted(const std::string& text) {
  if (text == "auto") return Wanted{{1, 2}, false};
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  Wanted wanted{{1}, false};
  bool known = parts[0] == "periodic";
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i] == "contiguous") {
      wanted.contiguous = true;
    } else if (absl::StartsWith(parts[i], "k=")) {
      known = known && absl::SimpleAtoi(parts[i].substr(2), &wanted.batches[0]) && wanted.batches[0] >= 1 &&
              wanted.batches[0] <= kMaxBatches;
    } else {
      known = false;
    }
  }
  if (known) return wanted;
  return absl::InvalidArgumentError(
      absl::StrFormat("--schedule: '%s' cannot be planned; use auto or periodic[,k=1..%d][,contiguous] (weft "
                      "compare simulates the "
                      "other families)",
                      text, kMaxBatches));
}

absl::Status ReadRun(const PlanOptions& options, Source* source) {
  auto run = ReadRunFile(options.file, RunFileData::kIgnored);
  if (!run.ok()) return run.status();
  if (const auto schedule = ScheduleOf(*run); schedule.ok() && !schedule->terms.inputs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.file, ": the stages of its model are no chain; only chains can be planned"));
  }
  source->profile = CountedProfile(*run, options.flops);
  const size_t layers = source->profile.parts.size();
  if (!options.profile.empty()) {
    auto profile = ReadProfile(options.profile);
    if (!profile.ok()) return profile.status();
    if (profile->of_stages || profile->parts.size() != layers) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has %d %s, and the model of %s has %d layers; measure it with weft profile %s",
                          options.profile, profile->parts.size(), profile->of_stages ? "stages" : "layers",
                          options.file, layers, options.file));
    }
    source->profile = *std::move(profile);
  }
  source->memory = static_cast<double>(run->memory);
  source->microbatches = run->train.microbatches;
  run->memory = 0;  // what fits is this command's to find
  source->run = *std::move(run);
  return absl::OkStatus();
}

absl::StatusOr<Source> ReadSource(const PlanOptions& options) {
  Source source;
  if (IsRunFile(options.file)) {
    if (absl::Status read = ReadRun(options, &source); !read.ok()) return read;
  } else {
    if (!options.profile.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.file, " is a profile itself; leave --profile out"));
    }
    auto profile = ReadProfile(options.file);
    if (!profile.ok()) return profile.status();
    source.profile = *std::move(profile);
  }
  if (options.memory > 0) source.memory = options.memory;
  if (options.bandwidth > 0) source.profile.bandwidth = options.bandwidth;
  if (options.latency > 0) source.profile.latency = options.latency;
  if (options.microbatches > 0) {
    source.microbatches = options.microbatches;
    if (source.run.has_value() && options.microbatches != source.run->train.microbatches) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has %d micro-batches in a step; --microbatches is for profiles", options.file,
                          source.run->train.microbatches));
    }
  }
  return source;
}

// Returns the best of the wanted patterns; the first of those that are as good.
std::optional<Plan> FindBest(const PlannedChain& chain, const Wanted& wanted, double seconds) {
  const int64_t begin = MonotonicNow();
  std::optional<Plan> best;
  for (size_t i = 0; i < wanted.batches.size(); ++i) {
    // Each has its share of the time.
    const double share = seconds * static_cast<double>(i + 1) / static_cast<double>(wanted.batches.size());
    const auto end = begin + static_cast<int64_t>(share * 1e9);
    PlacementSearchOptions options;
    options.batches = wanted.batches[i];
    options.contiguous = wanted.contiguous;
    options.limits.stop = [end] { return MonotonicNow() >= end; };
    std::optional<Plan> plan = FindPlan(chain, options);
    if (!plan.has_value()) continue;
    const bool better =
        !best.has_value() || plan->pattern.period * best->batches < best->pattern.period * plan->batches;
    if (better) best = std::move(plan);
  }
  return best;
}

// The step and the peaks of a plan, as the simulator has them.
struct Prediction {
  double step = 0;
  std::vector<double> peak_bytes;
};

std::vector<double> PeaksOf(const SimulationResult& result, const std::vector<double>& held) {
  std::vector<double> peaks;
  for (size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const RankStats& stats = result.ranks[rank];
    peaks.push_back((held.empty() ? stats.held_bytes : held[rank]) + stats.peak_activation_bytes);
  }
  return peaks;
}

absl::StatusOr<Prediction> PredictRun(const PlanOptions& options, const Source& source, const Plan& plan) {
  RunSpec planned = *source.run;
  planned.layers_of_stage = plan.stage_layers;
  planned.schedule = ScheduleOfPlan(plan);
  planned.schedule.reduction = source.run->schedule.reduction;
  const auto costs = RunCosts::Make({options.profile, options.flops, 0, options.bandwidth, options.latency});
  if (!costs.ok()) return costs.status();
  const auto prepared = PrepareRun(planned, *costs);
  if (!prepared.ok()) return prepared.status();
  const auto result = SimulateRun(*prepared);
  if (!result.ok()) return result.status();
  return Prediction{result->makespan, PeaksOf(*result, prepared->held)};
}

// Plans for a profile alone: one step of the given micro-batches, or a window in steady state.
absl::StatusOr<Prediction> PredictProfile(const Source& source, const TickedChain& ticked, const Plan& plan) {
  if (source.microbatches == 0) {
    return Prediction{ticked.TimeOf(static_cast<double>(plan.pattern.period)),
                      {plan.peak_bytes.begin(), plan.peak_bytes.end()}};
  }
  const int stages = static_cast<int>(plan.stage_layers.size());
  auto schedule = MakeSchedule(ScheduleOfPlan(plan), stages, source.microbatches);
  if (!schedule.ok()) return schedule.status();
  SimulationOptions options;
  const absl::Status applied = ApplyProfile(
      source.profile, stages, source.profile.of_stages ? std::vector<int>() : plan.stage_layers, &options);
  if (!applied.ok()) return applied;
  const auto result = Simulate(Graph(*std::move(schedule)), options);
  if (!result.ok()) return result.status();
  return Prediction{result->makespan, PeaksOf(*result, {})};
}

std::string NothingFits(const Source& source, const TickedChain& ticked) {
  PlacementSearchOptions options;
  options.listed = 20'000;
  const int64_t least = LeastMemoryThatFits(ticked.chain, options);
  return absl::StrFormat("nothing fits %s on each of %d ranks; %s (%d bytes) would do",
                         FormatBytes(source.memory), ticked.chain.ranks,
                         FormatBytes(static_cast<double>(least)), least);
}

// Plans, predicts, and plans anew with less memory where the prediction counts more than the planner.
absl::StatusOr<PlanReport> MakeReport(const PlanOptions& options, const Source& source,
                                      const Wanted& wanted) {
  constexpr int kRounds = 4;
  double room = source.memory, seconds = options.time_limit;
  const auto baseline = ChainOf(source.profile, options.workers, 0);
  if (!baseline.ok()) return baseline.status();
  for (int round = 0; round < kRounds; ++round) {
    const auto ticked = ChainOf(source.profile, options.workers, room);
    if (!ticked.ok()) return ticked.status();
    if (source.run.has_value()) seconds /= 2;  // further rounds share the rest
    std::optional<Plan> plan = FindBest(ticked->chain, wanted, seconds);
    if (!plan.has_value()) return absl::ResourceExhaustedError(NothingFits(source, *ticked));
    const auto predicted =
        source.run.has_value() ? PredictRun(options, source, *plan) : PredictProfile(source, *ticked, *plan);
    if (!predicted.ok()) return predicted.status();
    const double most = *std::max_element(predicted->peak_bytes.begin(), predicted->peak_bytes.end());
    if (source.memory > 0 && most > source.memory) {
      room -= most - source.memory;
      if (room <= 0) break;
      continue;
    }
    PlanReport report;
    report.source = options.file;
    report.unit = source.profile.unit;
    report.layers = baseline->chain.size();
    report.plan = *std::move(plan);
    report.pipedream = *FindContiguousPlan(baseline->chain, /*replicated=*/true);
    report.ticks_per_unit = ticked->ticks_per_unit;
    report.step = predicted->step;
    report.microbatches = source.microbatches;
    report.peak_bytes = predicted->peak_bytes;
    return report;
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("no plan was found that fits %s on each of %d ranks with what a run keeps beside "
                      "weights and activations; give "
                      "more memory or more ranks",
                      FormatBytes(source.memory), options.workers));
}

}  // namespace

ExitCode RunPlan(const PlanOptions& options) {
  const auto wanted = ParseWanted(options.schedule);
  if (!wanted.ok()) return Fail(kExitUsage, wanted.status().message());
  const auto source = ReadSource(options);
  if (!source.ok()) return Fail(kExitBadConfiguration, source.status().message());
  const size_t layers = source->profile.parts.size() * wanted->batches.back();
  if (layers > kMaxLayers) {
    return Fail(kExitBadConfiguration,
                absl::StrFormat(
                    "%s has %d layers in a window, and at most %d can be planned; profile larger layers, or "
                    "give --schedule periodic",
                    options.file, layers, kMaxLayers));
  }
  const auto report = MakeReport(options, *source, *wanted);
  if (report.status().code() == absl::StatusCode::kResourceExhausted) {
    if (options.output == "json")
      PrintData(nlohmann::ordered_json{{"schedule", "periodic"}, {"fits", false}}.dump() + "\n");
    return Fail(kExitFailed, report.status().message());
  }
  if (!report.ok()) return Fail(kExitBadConfiguration, report.status().message());
  if (options.output == "json") return PrintData(PlanJson(*report).dump() + "\n");
  return PrintData(options.output == "yaml" ? PlanYaml(*report) : PlanTable(*report));
}

}  // namespace weft
