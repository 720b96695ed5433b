// Implements how WorkerCore begins a run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/core/worker_run.h"

namespace weft {
namespace {

// Counts the steps below `end` that are like step `phase` of a period.
int StepsOfPhase(int end, int phase, int period) { return end / period + (phase < end % period ? 1 : 0); }

// Returns the first place in the rank's fixed order, counted over all steps; nothing where it has none.
std::optional<int64_t> FirstPlace(const Graph& graph, Rank rank, int first_step) {
  if (!graph.replays()) return std::nullopt;
  return static_cast<int64_t>(graph.schedule().order[rank].size()) * first_step;
}

// Returns the credit of a rank: enough that it never waits for a grant though completions are reported only
// every few milliseconds, bounded so that a grant stays a small message.
int32_t CreditFor(int jobs_per_step) { return std::clamp(4 * jobs_per_step, 64, 4096); }

// Returns how many intervals of idleness a rank keeps, and how many of transfers: some hundred KiB of a
// process.
size_t SpansOfRank(size_t ranks) {
  constexpr size_t kOfProcess = 16384;
  return std::clamp<size_t>(kOfProcess / std::max<size_t>(1, ranks), 16, 8192);
}

}  // namespace

void RequireOfCore(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "weft: broken invariant in the worker core: %s\n", what);
  std::abort();
}

std::vector<int> WorkerCore::Run::StatesOf(const Assign& assign) {
  std::vector<int> states(assign.process_of_rank.size(), -1);
  for (const RankLease& lease : assign.leases)
    states[lease.rank] = static_cast<int>(&lease - assign.leases.data());
  return states;
}

// A job waits for weights that the run begins with, as for others; and for the end of its collective instead
// of what the collective waits for by itself.
StepProgress::Options WorkerCore::Run::ProgressOptions() const {
  StepProgress::Options options;
  options.first_step = first_step;
  for (const int state : state_of_rank) options.followed.push_back(state >= 0);
  options.rule = [this](const Job& job, const std::vector<Edge>& predecessors) {
    const auto counts = [this](const Edge& e) {
      return !e.joined && (!IsBeforeRun(e) || e.tensor == TensorKind::kWeights);
    };
    return static_cast<int>(std::count_if(predecessors.begin(), predecessors.end(), counts)) +
           (IsCollective(job) ? 1 : 0);
  };
  return options;
}

StepProgress::Step& WorkerCore::Run::StepWith(JobId id) {
  RequireOfCore(StepOf(id) >= progress.first_step(), "a step is not touched after it ended");
  return progress.Open(StepOf(id));
}

void WorkerCore::OnAssign(int64_t now, const Assign& assign, WorkerEffects* out) {
  if (run_ && (run_->aborted || run_->finishing)) {
    next_ = assign;
    return;
  }
  if (run_) {
    out->push_back(SendEffect{
        Failed{assign.run, absl::StrCat("this process still works on run ", run_->assignment.run)}});
    return;
  }
  absl::StatusOr<RunShape> shape = parse_(assign.spec);
  if (!shape.ok()) {
    out->push_back(SendEffect{Failed{assign.run, std::string(shape.status().message())}});
    return;
  }
  shape->schedule.collective = assign.collective;
  const int world = shape->schedule.ranks;
  if (static_cast<int>(assign.process_of_rank.size()) != world) {
    out->push_back(
        SendEffect{Failed{assign.run, absl::StrFormat("the assignment places %d ranks, the schedule has %d",
                                                      assign.process_of_rank.size(), world)}});
    return;
  }
  if (assign.collective && assign.leases.size() != 1) {
    out->push_back(SendEffect{Failed{
        assign.run,
        absl::StrCat("collectives need a process for each rank, and this one has ", assign.leases.size())}});
    return;
  }
  run_ = std::make_unique<Run>(assign, *std::move(shape));
  Run& run = *run_;
  const Schedule& schedule = run.graph.schedule();
  const JobTable& jobs = run.progress.jobs();
  std::vector<std::vector<char>> touches(assign.leases.size(), std::vector<char>(schedule.stages, 0));
  for (int p = 0; p < schedule.period; ++p) {
    for (int i = 0; i < jobs.size(); ++i) {
      const Rank rank = jobs.RanksAt(p)[i];
      if (run.IsLocal(rank)) touches[run.state_of_rank[rank]][jobs.First(i).stage] = 1;
    }
  }
  for (const RankLease& lease : assign.leases) {
    // A limit on a stage that the rank does not compute says nothing, and costs a look at each dispatch.
    const std::vector<char>& touched = touches[run.ranks.size()];
    std::vector<std::optional<int>> limits(schedule.limit ? schedule.stages : 0);
    for (int s = 0; s < static_cast<int>(limits.size()); ++s) {
      if (touched[s] != 0) limits[s] = schedule.limit(lease.rank, s);
    }
    run.ranks.push_back(std::make_unique<RankState>(
        now, lease.rank, lease.token, std::move(limits), FirstPlace(run.graph, lease.rank, run.first_step),
        run.admission.TicketsOf(lease.rank, run.first_step), SpansOfRank(assign.leases.size())));
    run.ranks.back()->measured.assign(schedule.stages, false);
    run.ranks.back()->visiting_versions.assign(schedule.stages, 0);
  }
  std::vector<bool> followed(world);
  for (Rank r = 0; r < world; ++r) followed[r] = run.IsLocal(r);
  run.versions.emplace(run.graph, HeldVersions::Steps{run.steps, run.first_step, /*saved=*/true},
                       std::move(followed));
  for (int p = 0; p < schedule.period; ++p) {
    for (const Rank rank : jobs.RanksAt(p)) {
      if (!run.IsLocal(rank)) continue;
      run.StateOf(rank).jobs_per_step += p == 0;
      run.StateOf(rank).jobs_left +=
          StepsOfPhase(run.steps, p, schedule.period) - StepsOfPhase(run.first_step, p, schedule.period);
    }
  }
  PrepareEffect prepare{assign, {}, run.Groups()};
  for (size_t r = 0; r < run.ranks.size(); ++r) {
    for (int s = 0; s < schedule.stages; ++s) {
      const auto& members = run.graph.members(s);
      const Rank rank = run.ranks[r]->rank;
      const auto member = std::lower_bound(members.begin(), members.end(), rank);
      const bool holds = member != members.end() && *member == rank;
      if (!holds && !touches[r][s]) continue;
      PrepareEffect::Stage stage{rank, s, holds, false};
      if (holds) {
        const int number = static_cast<int>(member - members.begin());
        stage.saves = run.graph.Saves(s, number);
        stage.sums_own = run.graph.collective(s);
        stage.adopts = !run.graph.MakesVersions(s, number);
        if (run.graph.sharded()) {
          stage.part = number;
          stage.parts = static_cast<int>(members.size());
        }
        int& peak = run.ranks[r]->peak_weight_versions;
        peak = std::max(peak, run.versions->Held(s, number));
      }
      if (run.graph.migrates()) {
        stage.migrates = true;
        stage.holds_weights = false;
      }
      prepare.stages.push_back(stage);
    }
  }
  out->push_back(std::move(prepare));
}

void WorkerCore::OnPrepared(int64_t now, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  run_->prepared = true;
  run_->TouchAll();
  out->push_back(SendEffect{Prepared{run_->assignment.run}});
  for (const auto& r : run_->ranks) {
    out->push_back(SendEffect{Credit{run_->assignment.run, r->rank, r->token,
                                     CreditFor(static_cast<int>(r->jobs_per_step) * run_->StepsAtOnce())}});
  }
  PublishInitialWeights(out);
  if (!run_->graph.migrates()) run_->versions->DropUnread(&run_->dropped);
  Drop(out);
  UpdateIdle(now);
}

void WorkerCore::PublishInitialWeights(WorkerEffects* out) {
  Run& run = *run_;
  std::vector<Edge> edges;
  const int end = std::min(run.steps, run.first_step + run.progress.edges().max_distance() + 1);
  for (int step = run.first_step; step < end; ++step) {
    for (int i = 0; i < run.progress.jobs().size(); ++i) {
      const Job job = run.JobOf(MakeJobId(step, i));
      if (!run.graph.FetchesWeights(job)) continue;
      edges.clear();
      run.graph.Predecessors(job, &edges);
      for (const Edge& e : edges) {
        if (run.IsInitialWeights(e) && run.IsLocal(run.graph.RankOf(e.from))) PublishEdge(e, out);
      }
    }
  }
}

}  // namespace weft
