#include "client/compare_command.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/compare_measured.h"
#include "client/profile.h"
#include "client/run_file.h"
#include "nlohmann/json.hpp"
#include "proto/run/file_section.h"
#include "proto/run/run_memory.h"
#include "proto/run/run_schedule.h"
#include "schedules/candidates.h"
#include "schedules/check.h"
#include "schedules/drawing.h"
#include "schedules/families.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Enough that the second half is the steady state.
constexpr int kSteps = 4;

// One schedule's prediction, or why there is none.
struct Row {
  std::string schedule;
  bool chosen = false;  // by the run file
  bool valid = false;   // it can run with these sizes
  bool fits = false;
  std::string reason;  // where it is not valid or does not fit
  int ranks = 0;
  double time = 0;  // of a step in steady state
  double idle = 0;
  double peak_bytes = 0, sent_bytes = 0;  // of the rank that has most; of all ranks in a step
  int peak_activations = 0;
};

// How every candidate is simulated.
struct Comparison {
  SimulationOptions simulation;
  bool measured = false;  // times and bytes are a profile's; else the run's, counted
  int workers = 0;        // at most as many ranks; 0: any number
};

bool IsAboutMemory(const absl::Status& status) {
  const auto path = status.GetPayload(kPathPayload);
  return path.has_value() && *path == "memory";
}

// Without what the table says already, and without advice on one schedule, where there are others.
std::string ReasonOf(const absl::Status& status, const Candidate& candidate) {
  absl::string_view reason = status.message();
  absl::ConsumePrefix(&reason, "memory: ");
  absl::ConsumePrefix(&reason, "does not fit: ");
  absl::ConsumePrefix(&reason, absl::StrCat(candidate.name, ": "));
  return std::string(reason.substr(0, reason.find("; give it more memory")));
}

std::string TextOf(const Candidate& c) { return ToText(ScheduleSpec{c.name, c.parameters, c.rule}); }

// The run as it would be under the candidate. A measured profile has its own bytes, and simulates with them.
RunSpec RunUnder(const RunSpec& run, const Candidate& candidate, const Comparison& comparison) {
  RunSpec under = run;
  under.schedule.name = candidate.name;
  under.schedule.parameters = candidate.parameters;
  under.schedule.rule = candidate.rule;
  under.memory = comparison.measured ? 0 : static_cast<int64_t>(std::min(comparison.simulation.memory, 1e18));
  return under;
}

// By the counts that would refuse the run, so that what fits here is what can be trained.
absl::StatusOr<SimulationResult> SimulateCounted(const RunSpec& run, const Schedule& schedule,
                                                 SimulationOptions simulation) {
  const RunMemory counted = CountRun(run, schedule);
  simulation.memory = 0;  // the schedule has its budget in itself
  simulation.activation.assign(counted.left.begin(), counted.left.end());
  auto result = Simulate(Graph(schedule), simulation);
  if (!result.ok()) return result;
  for (size_t r = 0; r < counted.ranks.size(); ++r) {
    result->ranks[r].held_bytes = static_cast<double>(counted.ranks[r].held + counted.ranks[r].work);
  }
  return result;
}

Row Predict(const Candidate& candidate, const RunSpec& run, const Comparison& comparison) {
  Row row;
  row.schedule = TextOf(candidate);
  const RunSpec under = RunUnder(run, candidate, comparison);
  const auto schedule = CheckedScheduleOf(under);
  if (!schedule.ok()) {
    row.reason = ReasonOf(schedule.status(), candidate);
    row.valid = IsAboutMemory(schedule.status());
    return row;
  }
  row.valid = true;
  row.ranks = schedule->ranks;
  if (comparison.workers > 0 && row.ranks > comparison.workers) {
    row.reason = absl::StrCat("needs ", row.ranks, " ranks, more than --workers ", comparison.workers);
    return row;
  }
  const auto result = comparison.measured ? Simulate(Graph(*schedule), comparison.simulation)
                                          : SimulateCounted(under, *schedule, comparison.simulation);
  if (!result.ok()) {
    row.reason = ReasonOf(result.status(), candidate);
    return row;
  }
  row.fits = true;
  row.time = result->period;
  row.idle = result->bubble_ratio;
  for (const RankStats& r : result->ranks) {
    row.peak_bytes = std::max(row.peak_bytes, r.held_bytes + r.peak_activation_bytes);
    row.peak_activations = std::max(row.peak_activations, r.peak_activations);
    row.sent_bytes += r.bytes_sent / kSteps;
  }
  return row;
}

std::vector<Row> PredictAll(const RunSpec& run, const Comparison& comparison) {
  std::vector<Candidate> candidates = Candidates(run.stages(), run.train.microbatches);
  const Candidate chosen = {run.schedule.name, run.schedule.parameters, run.schedule.rule};
  const auto same = [&](const Candidate& c) { return TextOf(c) == TextOf(chosen); };
  if (std::none_of(candidates.begin(), candidates.end(), same)) candidates.push_back(chosen);
  std::vector<Row> rows;
  for (const Candidate& c : candidates) {
    rows.push_back(Predict(c, run, comparison));
    rows.back().chosen = same(c);
  }
  // What fits by time, then what does not fit, then what these sizes do not allow.
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::make_tuple(!a.fits, !a.valid, a.time, a.ranks) <
           std::make_tuple(!b.fits, !b.valid, b.time, b.ranks);
  });
  return rows;
}

std::string Table(const RunSpec& run, const CompareOptions& options, const std::vector<Row>& rows) {
  const std::string unit = options.profile.empty() ? absl::StrFormat("units of %.4g FLOPs", options.flops)
                                                   : absl::StrCat("the unit of ", options.profile);
  std::string out = absl::StrFormat("%s: %d stages, %d micro-batches; time in %s\n\n", run.name, run.stages(),
                                    run.train.microbatches, unit);
  std::vector<std::vector<std::string>> fitting, others;
  for (const Row& row : rows) {
    const std::string name = absl::StrCat(row.schedule, row.chosen ? " *" : "");
    if (!row.fits) {
      others.push_back({name, row.valid ? "does not fit" : "not with these sizes", row.reason});
      continue;
    }
    fitting.push_back({name, absl::StrCat(row.ranks), absl::StrFormat("%.5g", row.time),
                       absl::StrFormat("%.2f", row.time / rows.front().time),
                       absl::StrFormat("%.1f %%", 100 * row.idle), absl::StrCat(row.peak_activations),
                       FormatBytes(row.peak_bytes), FormatBytes(row.sent_bytes)});
  }
  if (!fitting.empty()) {
    absl::StrAppend(&out, FormatTable({"schedule", "ranks", "time a step", "of best", "idle", "peak act.",
                                       "memory of a rank", "sent a step"},
                                      fitting));
  }
  for (const auto& other : others) {
    absl::StrAppend(&out, &other == &others.front() ? "\n" : "", other[0], ": ", other[1], ": ", other[2],
                    "\n");
  }
  absl::StrAppend(&out, "\n* the run file's schedule");
  if (options.profile.empty()) {
    absl::StrAppend(&out, "; memory is counted as `memory:` of a run file is");
  }
  return out + "\n";
}

std::string ToJson(const RunSpec& run, const CompareOptions& options, double memory,
                   const std::vector<Row>& rows) {
  Json json = {{"run", run.name},
               {"stages", run.stages()},
               {"microbatches", run.train.microbatches},
               {"memory", std::llround(memory)},
               {"profile", options.profile.empty() ? Json(nullptr) : Json(options.profile)},
               {"schedules", Json::array()}};
  for (const Row& row : rows) {
    Json entry = {{"schedule", row.schedule}, {"chosen", row.chosen}, {"fits", row.fits}};
    if (row.fits) {
      entry["ranks"] = row.ranks;
      entry["step_time"] = row.time;
      entry["bubble_ratio"] = row.idle;
      entry["peak_activations"] = row.peak_activations;
      entry["peak_bytes"] = std::llround(row.peak_bytes);
      entry["bytes_sent"] = std::llround(row.sent_bytes);
    } else {
      entry["valid"] = row.valid;
      entry["reason"] = row.reason;
    }
    json["schedules"].push_back(entry);
  }
  return json.dump() + "\n";
}

}  // namespace

ExitCode RunCompare(const CompareOptions& options) {
  if (options.measure) return RunMeasuredCompare(options);
  const auto run = ReadRunFile(options.file, RunFileData::kIgnored);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  const auto profile =
      options.profile.empty() ? CountedProfile(*run, options.flops) : ReadProfile(options.profile);
  if (!profile.ok()) return Fail(kExitBadConfiguration, profile.status().message());
  Comparison comparison;
  SimulationOptions& simulation = comparison.simulation;
  const absl::Status applied = ApplyProfile(*profile, run->stages(), run->layers_of_stage, &simulation);
  if (!applied.ok()) return Fail(kExitBadConfiguration, applied.message());
  simulation.steps = kSteps;
  simulation.memory = options.memory > 0 ? options.memory : static_cast<double>(run->memory);
  comparison.measured = !options.profile.empty();
  comparison.workers = options.workers;
  // A pair hides transfers; that its two halves compute faster together has to be measured.
  simulation.hidden = 0;
  if (options.bandwidth > 0) simulation.bandwidth = options.bandwidth;
  if (options.latency > 0) simulation.latency = options.latency;
  const std::vector<Row> rows = PredictAll(*run, comparison);
  const ExitCode printed =
      PrintData(options.json ? ToJson(*run, options, simulation.memory, rows) : Table(*run, options, rows));
  if (printed != kExitOk) return printed;
  return rows.front().fits
             ? kExitOk
             : Fail(kExitFailed, "no schedule fits; give more memory or more, smaller micro-batches");
}

}  // namespace weft
