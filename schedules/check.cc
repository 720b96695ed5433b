#include "schedules/check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/graph.h"
#include "schedules/simulate.h"

namespace weft {
namespace {

std::vector<JobKind> KindsOf(const Schedule& s) {
  if (s.split_backward) return {JobKind::kForward, JobKind::kBackwardInput, JobKind::kBackwardWeight};
  return {JobKind::kForward, JobKind::kBackward};
}

absl::Status CheckRanks(const Schedule& s) {
  for (int step = 0; step < s.period; ++step) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (int b = 0; b < s.microbatches; ++b) {
        const Rank forward = s.compute(Job::Compute(step, stage, b, JobKind::kForward));
        for (JobKind kind : KindsOf(s)) {
          const Job job = Job::Compute(step, stage, b, kind);
          const Rank c = s.compute(job), w = s.weights(job);
          if (c < 0 || c >= s.ranks) {
            return absl::InvalidArgumentError(absl::StrFormat(
                "compute places %s on rank %d; ranks are 0 to %d", Describe(job), c, s.ranks - 1));
          }
          if (w < 0 || w >= s.ranks) {
            return absl::InvalidArgumentError(
                absl::StrFormat("nobody holds the weights of %s: weights names rank %d; ranks are 0 to %d",
                                Describe(job), w, s.ranks - 1));
          }
          if (c != forward) {
            return absl::InvalidArgumentError(absl::StrFormat(
                "%s is on rank %d but its forward is on rank %d; the activation that it needs lives there",
                Describe(job), c, forward));
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPriorities(const Schedule& s) {
  std::vector<std::pair<Rank, std::pair<int64_t, Job>>> all;
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      for (JobKind kind : KindsOf(s)) {
        const Job job = Job::Compute(0, stage, b, kind);
        all.push_back({s.compute(job), {s.priority(job), job}});
      }
    }
  }
  std::sort(all.begin(), all.end());
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].first == all[i - 1].first && all[i].second.first == all[i - 1].second.first) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s and %s have the same priority %d on rank %d; priorities of a rank must differ",
                          Describe(all[i - 1].second.second), Describe(all[i].second.second),
                          all[i].second.first, all[i].first));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const Schedule& s) {
  if (!s.limit) return absl::OkStatus();
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      const Job job = Job::Compute(0, stage, b, JobKind::kForward);
      const std::optional<int> limit = s.limit(s.compute(job), stage);
      if (limit.has_value() && *limit < 1) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the limit of stage %d on rank %d is %d, so %s can never start; use at least 1",
                            stage, s.compute(job), *limit, Describe(job)));
      }
    }
  }
  return absl::OkStatus();
}

// Kahn's algorithm over two steps: what stays unvisited lies on or behind a cycle.
absl::Status CheckAcyclic(const Graph& graph) {
  const StepEdges edges = Flatten(graph);
  const int n = graph.jobs_per_step();
  const int steps = edges.max_distance + 1;
  std::vector<std::vector<int32_t>> waiting;
  std::vector<std::pair<int, int>> ready;
  for (int t = 0; t < steps; ++t) {
    waiting.push_back(edges.WaitingAt(t));
    for (int i = 0; i < n; ++i) {
      if (waiting[t][i] == 0) ready.push_back({t, i});
    }
  }
  int64_t visited = 0;
  while (!ready.empty()) {
    const auto [t, i] = ready.back();
    ready.pop_back();
    ++visited;
    for (int k = edges.begin[i]; k < edges.begin[i + 1]; ++k) {
      const auto& next = edges.successors[k];
      if (t + next.distance >= steps) continue;
      if (--waiting[t + next.distance][next.index] == 0) ready.push_back({t + next.distance, next.index});
    }
  }
  if (visited == int64_t{n} * steps) return absl::OkStatus();
  for (int i = 0; i < n; ++i) {
    if (waiting[0][i] > 0) {
      const Job job = graph.JobAt(0, i);
      return absl::InvalidArgumentError(absl::StrCat("the job graph has a cycle: ", Describe(job),
                                                     " on rank ", graph.RankOf(job), " waits for itself"));
    }
  }
  return absl::InvalidArgumentError("the job graph has a cycle across steps");
}

}  // namespace

absl::Status CheckSchedule(const Schedule& s) {
  if (s.stages < 1 || s.microbatches < 1 || s.ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a schedule needs at least one stage, micro-batch and rank; it has %d, %d, %d",
                        s.stages, s.microbatches, s.ranks));
  }
  if (!s.compute || !s.weights || !s.priority)
    return absl::InvalidArgumentError("a schedule needs compute, weights and priority");
  for (auto* check : {CheckRanks, CheckPriorities, CheckLimits}) {
    if (absl::Status status = check(s); !status.ok()) return status;
  }
  const Graph graph(s);
  if (absl::Status status = CheckAcyclic(graph); !status.ok()) return status;
  SimulationOptions two_steps;
  two_steps.steps = 2;
  if (auto run = Simulate(graph, two_steps); !run.ok())
    return absl::InvalidArgumentError(run.status().message());
  return absl::OkStatus();
}

}  // namespace weft
