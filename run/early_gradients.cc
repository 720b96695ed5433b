#include "run/early_gradients.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "schedules/sync/protocol.h"

namespace weft {
namespace {

// Jobs of one kind on one stage.
using StageJobs = std::pair<JobKind, int>;

// Tells whether the jobs of one kind on one stage go in the order of micro-batches, whatever jobs last: on
// one rank, which prefers the older, and made ready by jobs that go in it. `of_steps`: and in the order of
// steps. Tensors that go between two ranks are taken to arrive in the order in which they are made.
class JobOrders {
 public:
  JobOrders(const Graph& graph, bool of_steps) : graph_(graph), of_steps_(of_steps) {
    std::vector<StageJobs> out_of_order;
    for (const JobKind kind : kComputeKinds) {
      if (!graph.IsComputeKindUsed(kind)) continue;
      for (int stage = 0; stage < graph.schedule().stages; ++stage) {
        const StageJobs jobs{kind, stage};
        AddMakers(jobs);
        if (!PrefersOlder(jobs) || !AddPreceding(jobs)) out_of_order.push_back(jobs);
      }
    }
    // Jobs that wait for jobs out of order are out of order; all others are in order, rings of jobs included.
    while (!out_of_order.empty()) {
      const StageJobs jobs = out_of_order.back();
      out_of_order.pop_back();
      if (!out_of_order_.insert(jobs).second) continue;
      for (const StageJobs& waiting : waiting_for_[jobs]) out_of_order.push_back(waiting);
    }
  }

  bool IsInOrder(StageJobs jobs) const { return out_of_order_.count(jobs) == 0; }

 private:
  bool PrefersOlder(StageJobs jobs) const {
    const auto [kind, stage] = jobs;
    const Schedule& schedule = graph_.schedule();
    for (int step = 0; step < schedule.period; ++step) {
      for (int b = 1; b < schedule.microbatches; ++b) {
        if (!Prefers(Job::Compute(step, stage, b - 1, kind), Job::Compute(step, stage, b, kind)))
          return false;
      }
      const Job last = Job::Compute(step, stage, schedule.microbatches - 1, kind);
      if (of_steps_ && !Prefers(last, Job::Compute(step + 1, stage, 0, kind))) return false;
    }
    return true;
  }

  // Returns true if both are of one rank, which takes the older first, and that waits for no newer version.
  bool Prefers(const Job& older, const Job& job) const {
    const auto version = [this](const Job& of) {
      return of.step - graph_.schedule().StalenessOf(of.stage, of.microbatch);
    };
    return graph_.RankOf(older) == graph_.RankOf(job) && graph_.PriorityOf(older) <= graph_.PriorityOf(job) &&
           version(older) <= version(job);
  }

  // Notes the jobs that the schedule has end before. Returns whether those of one kind and stage come in the
  // order of the micro-batches that wait for them.
  bool AddPreceding(StageJobs jobs) {
    const Schedule& schedule = graph_.schedule();
    if (!schedule.precedes) return true;
    const int end = 2 * schedule.period + (of_steps_ ? 1 : 0);
    std::map<StageJobs, std::pair<int, int>> last;  // step, micro-batch
    for (int step = schedule.period; step < end; ++step) {
      if (!of_steps_) last.clear();
      for (int b = 0; b < schedule.microbatches; ++b) {
        for (const Job& job : schedule.precedes(Job::Compute(step, jobs.second, b, jobs.first))) {
          const std::pair at{job.step, job.microbatch};
          const auto [found, is_new] = last.try_emplace({job.kind, job.stage}, at);
          if (at < found->second || !HasMicrobatch(job.kind)) return false;
          found->second = at;
          waiting_for_[{job.kind, job.stage}].insert(jobs);
        }
      }
    }
    return true;
  }

  // Notes the jobs whose results these read.
  void AddMakers(StageJobs jobs) {
    const auto [kind, stage] = jobs;
    if (kind == JobKind::kForward) {
      for (const int input : graph_.inputs(stage)) waiting_for_[{kind, input}].insert(jobs);
    } else if (kind == graph_.input_backward()) {
      waiting_for_[{JobKind::kForward, stage}].insert(jobs);
      for (const int consumer : graph_.consumers(stage)) waiting_for_[{kind, consumer}].insert(jobs);
    } else {
      waiting_for_[{graph_.input_backward(), stage}].insert(jobs);
    }
  }

  const Graph& graph_;
  const bool of_steps_;
  std::map<StageJobs, std::set<StageJobs>> waiting_for_;  // by what they wait for
  std::set<StageJobs> out_of_order_;
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
  const bool greedy = !graph.replays() && graph.route() == nullptr;
  const std::optional<JobOrders> orders =
      greedy ? std::make_optional<JobOrders>(graph, /*of_steps=*/false) : std::nullopt;
  std::vector<int> early(schedule.stages, 0);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const Protocol& protocol = graph.protocol(stage);
    if (protocol.gradients_leave() || protocol.passes_sums()) continue;
    if (graph.replays()) {
      const Rank rank = graph.RankOf(Job::Compute(0, stage, 0, graph.final_backward()));
      early[stage] = EarlyInOrder(graph, stage, schedule.order[rank]);
    } else if (greedy && !orders->IsInOrder({graph.final_backward(), stage})) {
      early[stage] = (schedule.microbatches - 1) * (1 + schedule.MaxStaleness());
    }
  }
  return early;
}

std::vector<bool> FindSingleSums(const Graph& graph) {
  const Schedule& schedule = graph.schedule();
  std::vector<bool> single(schedule.stages, false);
  // The second of a pair may go before the update.
  if (graph.route() != nullptr || graph.has_pairs()) return single;
  const std::optional<JobOrders> orders =
      graph.replays() ? std::nullopt : std::make_optional<JobOrders>(graph, /*of_steps=*/true);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const Protocol& protocol = graph.protocol(stage);
    // An update behind a reduce waits for other ranks, too.
    if (protocol.gradients_leave() || protocol.passes_sums() || protocol.has_reduce()) continue;
    single[stage] = graph.replays() || orders->IsInOrder({graph.final_backward(), stage});
  }
  return single;
}

}  // namespace weft
