#include "client/commands/measured_schedules.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/files/profile.h"
#include "schedules/dispatch/memory.h"
#include "schedules/drawing/live_activations.h"

namespace weft {
namespace {

// The number of jobs above which counting their messages is not worth the time.
constexpr int64_t kMaxCountedJobs = 200'000;

template <typename Number>
std::vector<Number> ListOf(const nlohmann::json& summary, const char* key) {
  const auto found = summary.find(key);
  if (found == summary.end() || !found->is_array()) return {};
  return found->get<std::vector<Number>>();
}

void TakeSummary(const nlohmann::json& summary, MeasuredRow* row) {
  row->ranks = summary.value("ranks", 0);
  row->processes = summary.value("processes", 0);
  row->step_seconds = summary["step_seconds"].value("p50", 0.0);
  row->predicted_step_seconds = summary.value("predicted_step_seconds", 0.0);
  row->peak_activations = ListOf<int>(summary, "peak_activations");
  row->peak_bytes = ListOf<std::map<std::string, double>>(summary, "peak_bytes");
  row->weight_versions = ListOf<int>(summary, "peak_weight_versions");
  row->idle = MeasuredIdle(ListOf<std::map<std::string, double>>(summary, "idle_seconds"),
                           ListOf<double>(summary, "wall_seconds"));
  const double steps = std::max(1, summary.value("steps", 1));
  for (const auto& [kind, bytes] : summary["bytes_sent"].items()) {
    if (bytes > 0) row->sent_bytes[kind] = bytes.get<double>() / steps;
  }
}

void TakeSimulation(const Graph& graph, const SimulationOptions& costs, const SimulationResult& result,
                    MeasuredRow* row) {
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    const RankStats& stats = result.ranks[r];
    row->simulated_peak_activations.push_back(stats.peak_activations);
    row->simulated_activation_bytes.push_back(stats.peak_activation_bytes);
    row->simulated_weight_versions.push_back(stats.peak_weight_versions);
    for (int k = 0; k < kTensorKinds; ++k) {
      const double bytes = stats.sent_by_kind[k] / costs.steps;
      if (bytes > 0)
        row->simulated_sent_bytes[std::string(TensorKindName(static_cast<TensorKind>(k)))] += bytes;
    }
  }
  row->simulated_weight_bytes = HeldBytes(graph, {costs.activation, costs.weight, {0}});
  row->simulated_live_activations = result.peak_live_activations;
  row->simulated_live_bytes = result.peak_live_bytes;
}

}  // namespace

SimulationOptions MeasuredCosts(const RunSpec& run, const MeasuredRun& measured) {
  SimulationOptions costs;
  // The profile gives the sizes; its times, of counted FLOPs, are replaced.
  const absl::Status counted =
      ApplyProfile(CountedProfile(run, 1e9), run.stages(), run.layers_of_stage, &costs);
  if (!counted.ok()) return costs;  // the layers are the run's own
  const std::vector<double>& activation_bytes = measured.trace.activation_bytes;
  if (activation_bytes.size() == static_cast<size_t>(run.stages())) costs.activation = activation_bytes;
  costs.duration = MeanDurations(measured.trace.jobs, run.stages());
  return costs;
}

absl::StatusOr<MeasuredRow> RowOf(const RunSpec& run, const RunSchedule& schedule,
                                  const MeasuredRun& measured) {
  MeasuredRow row;
  TakeSummary(measured.summary, &row);
  row.stages = run.placed_stages();
  const Graph graph(schedule);
  SimulationOptions costs = MeasuredCosts(run, measured);
  const LiveActivations live = CountLiveActivations(measured.trace.jobs, costs.activation);
  row.live_activations = live.peak_activations;
  row.live_bytes = live.peak_bytes;
  costs.steps = run.train.steps;
  const auto result = Simulate(graph, costs);
  if (!result.ok()) return result.status();
  TakeSimulation(graph, costs, *result, &row);
  row.predicted_idle = PredictedIdle(*result);
  const int steps = SteadySteps(schedule.scheme);
  if (int64_t{graph.jobs_per_step()} * steps > kMaxCountedJobs) return row;
  const auto communication = CountCommunicationSteps(graph, steps);
  if (!communication.ok()) return communication.status();
  row.communication = *communication;
  return row;
}

MeasuredRow MedianRow(std::vector<MeasuredRow> repeats) {
  std::sort(repeats.begin(), repeats.end(),
            [](const MeasuredRow& a, const MeasuredRow& b) { return a.step_seconds < b.step_seconds; });
  std::vector<double> seconds;
  seconds.reserve(repeats.size());
  for (const MeasuredRow& row : repeats) seconds.push_back(row.step_seconds);
  MeasuredRow median = std::move(repeats[(repeats.size() - 1) / 2]);
  median.step_seconds_of_repeats = std::move(seconds);
  return median;
}

}  // namespace weft
