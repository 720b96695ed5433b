#include "schedules/simulator/simulation_summary.h"

#include <algorithm>
#include <cmath>

#include "schedules/dispatch/memory.h"

namespace weft {
namespace {

// Returns true if each rank computes all jobs of one stage. Then an activation of the first stage is alive
// until its micro-batch has come back through all stages, and M of them at a time keep a rank busy M / S of
// the time at most. Ranks with several stages, or with backwards whose forwards are elsewhere, have no such
// bound.
bool IsOneStageARank(const Graph& graph) {
  const Schedule& schedule = graph.schedule();
  std::vector<int> stage_of_rank(schedule.ranks, -1);
  std::vector<Rank> rank_of_stage(schedule.stages, -1);
  for (int step = 0; step < schedule.period; ++step) {
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      const Job job = graph.JobAt(step, i);
      if (!HasMicrobatch(job.kind)) continue;
      const Rank computes = graph.RankOf(job);
      int& stage = stage_of_rank[computes];
      Rank& rank = rank_of_stage[job.stage];
      if (stage < 0) stage = job.stage;
      if (rank < 0) rank = computes;
      if (stage != job.stage || rank != computes) return false;
    }
  }
  return true;
}

// Returns the number of steps after which the distances between the ends of steps repeat, from `first` to
// `last`; all of these steps where they do not repeat.
int StepsOfPattern(const std::vector<double>& step_end, int first, int last) {
  constexpr double kRounding = 1e-9;
  for (int steps = 1; 2 * steps <= last - first; ++steps) {
    const double length = step_end[last] - step_end[last - steps];
    int i = first + steps;
    while (i <= last && std::abs(step_end[i] - step_end[i - steps] - length) <= kRounding * step_end[last]) {
      ++i;
    }
    if (i > last) return steps;
  }
  return last - first;
}

}  // namespace

std::optional<double> SteadyPeriod(const SimulationResult& r, int cycle) {
  int last = static_cast<int>(r.step_end.size()) - 1;
  while (last > 0 && r.step_end[last] > r.drain_start) --last;
  const int first = static_cast<int>(r.step_end.size()) / 2 - 1, steps = last - first;
  if (first < 0 || steps < 1 || (cycle > 1 && steps < 2 * cycle)) return std::nullopt;
  const int over = cycle > 1 ? StepsOfPattern(r.step_end, first, last) : steps;
  return (r.step_end[last] - r.step_end[last - over]) / over;
}

SimulationResult Summarize(const Graph& graph, const SimulationOptions& options, double makespan,
                           SimulationResult r) {
  const Schedule& schedule = graph.schedule();
  r.makespan = makespan;
  const double area = r.makespan * schedule.ranks;
  double idle = 0, work = 0;
  int most = 0;
  for (RankStats& s : r.ranks) {
    s.idle = r.makespan - s.busy;
    idle += s.idle;
    most = std::max(most, s.peak_activations);
  }
  for (int s = 0; s < schedule.stages; ++s) {
    for (int k = 0; k < static_cast<int>(JobKind::kReduce); ++k) {
      if (graph.IsComputeKindUsed(static_cast<JobKind>(k))) work += OfStage(options.duration[k], s);
    }
  }
  work *= static_cast<double>(schedule.microbatches) * options.steps;
  r.bubble_ratio = area > 0 ? idle / area : 0;
  r.throughput_per_rank = area > 0 ? work / area : 0;
  r.throughput_bound =
      IsOneStageARank(graph) ? std::min(1.0, static_cast<double>(most) / schedule.stages) : 1.0;
  std::stable_sort(r.jobs.begin(), r.jobs.end(),
                   [](const SimulatedJob& a, const SimulatedJob& b) { return a.start < b.start; });
  std::stable_sort(r.idle.begin(), r.idle.end(),
                   [](const IdleInterval& a, const IdleInterval& b) { return a.rank < b.rank; });
  return r;
}

SimulationResult EmptyResult(const Graph& graph, const SimulationOptions& options,
                             const std::vector<double>& held_bytes) {
  SimulationResult result;
  result.ranks.resize(graph.schedule().ranks);
  for (size_t rank = 0; rank < held_bytes.size(); ++rank) result.ranks[rank].held_bytes = held_bytes[rank];
  result.step_end.assign(options.steps, 0);
  for (int s = 0; s < graph.schedule().stages; ++s) {
    for (const Rank rank : graph.members(s)) result.ranks[rank].peak_weight_versions = 1;
  }
  return result;
}

std::array<double, kIdleCauses> SimulationResult::IdleByCause() const {
  std::array<double, kIdleCauses> sum{};
  for (const RankStats& rank : ranks) {
    for (int c = 0; c < kIdleCauses; ++c) sum[c] += rank.idle_by_cause[c];
  }
  return sum;
}

}  // namespace weft
