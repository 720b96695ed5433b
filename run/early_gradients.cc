#include "run/early_gradients.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "schedules/sync/protocol.h"

namespace weft {
namespace {

// Tells whether the jobs of one kind on one stage go in the order of micro-batches, whatever jobs and
// transfers last: on one rank, which prefers the older, and made ready by jobs that go in it.
class JobOrders {
 public:
  explicit JobOrders(const Graph& graph) : graph_(graph) {}

  // A job that waits for itself by way of others is taken to be in order: then it is, if the others are.
  bool IsInOrder(JobKind kind, int stage) {
    const auto [known, is_new] = known_.try_emplace({kind, stage}, true);
    if (!is_new) return known->second;
    const bool in_order = PrefersOlder(kind, stage) && IsReadyInOrder(kind, stage);
    return known_[{kind, stage}] = in_order;
  }

 private:
  bool PrefersOlder(JobKind kind, int stage) const {
    const Schedule& schedule = graph_.schedule();
    for (int step = 0; step < schedule.period; ++step) {
      for (int b = 1; b < schedule.microbatches; ++b) {
        const Job older = Job::Compute(step, stage, b - 1, kind), job = Job::Compute(step, stage, b, kind);
        if (graph_.RankOf(older) != graph_.RankOf(job) || graph_.PriorityOf(older) > graph_.PriorityOf(job) ||
            schedule.StalenessOf(stage, b - 1) < schedule.StalenessOf(stage, b))
          return false;
      }
    }
    return true;
  }

  bool IsReadyInOrder(JobKind kind, int stage) {
    const auto all_of = [&](const std::vector<int>& stages, JobKind of) {
      return std::all_of(stages.begin(), stages.end(), [&](int s) { return IsInOrder(of, s); });
    };
    if (!PrecedingAreInOrder(kind, stage)) return false;
    if (kind == JobKind::kForward) return all_of(graph_.inputs(stage), kind);
    if (kind != graph_.input_backward()) return IsInOrder(graph_.input_backward(), stage);
    return IsInOrder(JobKind::kForward, stage) && all_of(graph_.consumers(stage), kind);
  }

  // Likewise of the jobs that the schedule has end before.
  bool PrecedingAreInOrder(JobKind kind, int stage) {
    const Schedule& schedule = graph_.schedule();
    if (!schedule.precedes) return true;
    std::map<std::pair<JobKind, int>, std::pair<int, int>> last;  // by kind and stage: step, micro-batch
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const Job& job : schedule.precedes(Job::Compute(schedule.period, stage, b, kind))) {
        const std::pair at{job.step, job.microbatch};
        const auto [found, is_new] = last.try_emplace({job.kind, job.stage}, at);
        if (at < found->second || !IsInOrder(job.kind, job.stage)) return false;
        found->second = at;
      }
    }
    return true;
  }

  const Graph& graph_;
  std::map<std::pair<JobKind, int>, bool> known_;
};

// Returns how many gradients of the stage wait at a time in the rank's fixed order.
int EarlyInOrder(const Graph& graph, int stage, const std::vector<Job>& order) {
  int turn = 0;
  std::set<int> waiting;  // micro-batches
  size_t most = 0;
  for (const Job& job : order) {
    if (job.kind != graph.final_backward() || job.stage != stage) continue;
    waiting.insert(job.microbatch);
    while (waiting.erase(turn) > 0) ++turn;
    most = std::max(most, waiting.size());
  }
  return static_cast<int>(most);
}

}  // namespace

std::vector<int> CountEarlyGradients(const Graph& graph) {
  const Schedule& schedule = graph.schedule();
  JobOrders orders(graph);
  std::vector<int> early(schedule.stages, 0);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const Protocol& protocol = graph.protocol(stage);
    if (protocol.gradients_leave() || protocol.passes_sums()) continue;
    if (graph.replays()) {
      const Rank rank = graph.RankOf(Job::Compute(0, stage, 0, graph.final_backward()));
      early[stage] = EarlyInOrder(graph, stage, schedule.order[rank]);
    } else if (graph.route() == nullptr && !orders.IsInOrder(graph.final_backward(), stage)) {
      early[stage] = (schedule.microbatches - 1) * (1 + schedule.MaxStaleness());
    }
  }
  return early;
}

}  // namespace weft
