#include "schedules/simulator/simulation_summary.h"

#include <algorithm>

#include "schedules/dispatch/memory.h"

namespace weft {
namespace {

// Each rank computes all jobs of one stage. Then an activation of the first stage is alive until its
// micro-batch has come back through all stages, and M of them at a time keep a rank busy M / S of the time at
// most. Ranks with several stages, or with backwards whose forwards are elsewhere, have no such bound.
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

}  // namespace

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
  const int half = options.steps / 2;
  r.period = options.steps == 1
                 ? r.makespan
                 : (r.step_end[options.steps - 1] - r.step_end[half - 1]) / (options.steps - half);
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
