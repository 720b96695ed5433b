#include "client/compare_command.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/profile.h"
#include "client/run_file.h"
#include "nlohmann/json.hpp"
#include "proto/run/model_layers.h"
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
  bool trainable = true;  // by the workers as they are
  std::string reason;     // where it is not valid or does not fit
  int ranks = 0;
  double time = 0;  // of a step in steady state
  double idle = 0;
  double peak_bytes = 0, sent_bytes = 0;  // of the rank that has most; of all ranks in a step
  int peak_activations = 0;
};

// Without what the table says already.
std::string ReasonOf(const absl::Status& status, const Candidate& candidate) {
  absl::string_view reason = status.message();
  absl::ConsumePrefix(&reason, "does not fit: ");
  absl::ConsumePrefix(&reason, absl::StrCat(candidate.name, ": "));
  return std::string(reason);
}

std::string TextOf(const Candidate& c) { return ToText(ScheduleSpec{c.name, c.parameters}); }

Row Predict(const Candidate& candidate, const RunSpec& run, const SimulationOptions& simulation,
            int workers) {
  Row row;
  row.schedule = TextOf(candidate);
  auto schedule = MakeSchedule(candidate.name, candidate.parameters, run.stages(), run.train.microbatches);
  if (schedule.ok()) schedule->inputs = StageInputs(CountLayers(run.model), run.layers_of_stage);
  absl::Status status = schedule.ok() ? CheckSchedule(*schedule) : schedule.status();
  if (!status.ok()) {
    row.reason = ReasonOf(status, candidate);
    return row;
  }
  row.valid = true;
  row.trainable = CheckTrainable(*schedule).ok();
  row.ranks = schedule->ranks;
  if (workers > 0 && row.ranks > workers) {
    row.reason = absl::StrCat("needs ", row.ranks, " ranks, more than --workers ", workers);
    return row;
  }
  const auto result = Simulate(Graph(*schedule), simulation);
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

std::vector<Row> PredictAll(const RunSpec& run, const SimulationOptions& simulation, int workers) {
  std::vector<Candidate> candidates = Candidates(run.stages(), run.train.microbatches);
  const Candidate chosen = {run.schedule.name, run.schedule.parameters};
  const auto same = [&](const Candidate& c) { return TextOf(c) == TextOf(chosen); };
  if (std::none_of(candidates.begin(), candidates.end(), same)) candidates.push_back(chosen);
  std::vector<Row> rows;
  for (const Candidate& c : candidates) {
    rows.push_back(Predict(c, run, simulation, workers));
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
    const std::string name = absl::StrCat(row.schedule, row.chosen ? " *" : "", row.trainable ? "" : " +");
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
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return !row.trainable; })) {
    absl::StrAppend(&out, "; + can be simulated, not trained yet");
  }
  if (options.profile.empty()) {
    absl::StrAppend(
        &out, "; without --profile, activations are counted as the layers' outputs, the least they are");
  }
  return out + "\n";
}

std::string ToJson(const RunSpec& run, const CompareOptions& options, const std::vector<Row>& rows) {
  Json json = {{"run", run.name},
               {"stages", run.stages()},
               {"microbatches", run.train.microbatches},
               {"memory", std::llround(options.memory)},
               {"profile", options.profile.empty() ? Json(nullptr) : Json(options.profile)},
               {"schedules", Json::array()}};
  for (const Row& row : rows) {
    Json entry = {
        {"schedule", row.schedule}, {"chosen", row.chosen}, {"trainable", row.trainable}, {"fits", row.fits}};
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
  const auto run = ReadRunFile(options.file, RunFileData::kIgnored);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  const auto profile =
      options.profile.empty() ? CountedProfile(*run, options.flops) : ReadProfile(options.profile);
  if (!profile.ok()) return Fail(kExitBadConfiguration, profile.status().message());
  SimulationOptions simulation;
  const absl::Status applied = ApplyProfile(*profile, run->stages(), run->layers_of_stage, &simulation);
  if (!applied.ok()) return Fail(kExitBadConfiguration, applied.message());
  simulation.steps = kSteps;
  simulation.memory = options.memory;
  // A pair hides transfers; that its two halves compute faster together has to be measured.
  simulation.hidden = 0;
  if (options.bandwidth > 0) simulation.bandwidth = options.bandwidth;
  if (options.latency > 0) simulation.latency = options.latency;
  const std::vector<Row> rows = PredictAll(*run, simulation, options.workers);
  const ExitCode printed = PrintData(options.json ? ToJson(*run, options, rows) : Table(*run, options, rows));
  if (printed != kExitOk) return printed;
  return rows.front().fits
             ? kExitOk
             : Fail(kExitFailed, "no schedule fits; give more memory or more, smaller micro-batches");
}

}  // namespace weft
