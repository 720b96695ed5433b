#include "worker/core/run_preparation.h"

#include <algorithm>
#include <optional>

namespace weft {
namespace {

// Counts the steps below `end` that are like step `phase` of a period.
int StepsOfPhase(int end, int phase, int period) { return end / period + (phase < end % period ? 1 : 0); }

// Returns what the rank has of the stage, or nothing where it neither holds nor computes it.
std::optional<PrepareEffect::Stage> StageOf(const LocalRun& run, Rank rank, int s, bool computes) {
  const Graph& graph = run.graph();
  const auto& members = graph.members(s);
  const auto member = std::lower_bound(members.begin(), members.end(), rank);
  const bool holds = member != members.end() && *member == rank;
  if (!holds && !computes) return std::nullopt;
  PrepareEffect::Stage stage{rank, s, holds, false};
  if (holds) {
    const int number = static_cast<int>(member - members.begin());
    const Protocol& protocol = graph.protocol(s);
    stage.saves = protocol.holder(number).saves;
    stage.sums_own = protocol.reduces_jointly();
    stage.updated_elsewhere = !protocol.holder(number).steps;
    stage.installs_late = protocol.holder(number).installs_late;
    if (protocol.layout() == Layout::kSliced) {
      stage.part = number;
      stage.parts = static_cast<int>(members.size());
    }
  }
  if (graph.route() != nullptr) {
    stage.state_travels = true;
    stage.holds_weights = false;
  }
  return stage;
}

}  // namespace

ComputedStages FindComputedStages(const LocalRun& run, const JobTable& jobs) {
  const Schedule& schedule = run.graph().schedule();
  ComputedStages computed(run.ranks(), std::vector<char>(schedule.stages, 0));
  for (int p = 0; p < schedule.period; ++p) {
    for (int i = 0; i < jobs.size(); ++i) {
      const Rank rank = jobs.RanksAt(p)[i];
      if (run.IsLocal(rank)) computed[run.PlaceOf(rank)][jobs.First(i).stage] = 1;
    }
  }
  return computed;
}

std::vector<PrepareEffect::Stage> StagesToPrepare(const LocalRun& run, const ComputedStages& computed) {
  std::vector<PrepareEffect::Stage> stages;
  for (const RankLease& lease : run.assignment().leases) {
    for (int s = 0; s < run.graph().schedule().stages; ++s) {
      const bool computes = computed[run.PlaceOf(lease.rank)][s] != 0;
      if (const auto stage = StageOf(run, lease.rank, s, computes)) stages.push_back(*stage);
    }
  }
  return stages;
}

std::vector<RankWork> CountWork(const LocalRun& run, const JobTable& jobs) {
  std::vector<RankWork> work(run.ranks());
  const int period = run.graph().schedule().period;
  for (int p = 0; p < period; ++p) {
    const int steps = StepsOfPhase(run.steps(), p, period) - StepsOfPhase(run.first_step(), p, period);
    for (const Rank rank : jobs.RanksAt(p)) {
      if (!run.IsLocal(rank)) continue;
      RankWork& of_rank = work[run.PlaceOf(rank)];
      of_rank.jobs_per_step += p == 0;
      of_rank.jobs += steps;
    }
  }
  return work;
}

}  // namespace weft
