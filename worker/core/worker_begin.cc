// WorkerCore: how a run begins.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/core/worker_run.h"

namespace weft {
namespace {

// Of the steps below `end`, those that are like step `phase` of a period.
int StepsOfPhase(int end, int phase, int period) { return end / period + (phase < end % period ? 1 : 0); }

// Of the rank's fixed order, counted over all steps; nothing where it has none.
std::optional<int64_t> FirstPlace(const Graph& graph, Rank rank, int first_step) {
  if (!graph.replays()) return std::nullopt;
  return static_cast<int64_t>(graph.schedule().order[rank].size()) * first_step;
}

// Enough that a rank never waits for a grant though completions are told only every few milliseconds, bounded
// so that a grant stays a small message.
int32_t CreditFor(int jobs_per_step) { return std::clamp(4 * jobs_per_step, 64, 4096); }

// How many intervals of idleness a rank keeps, and how many of transfers: some hundred KiB of a process.
size_t SpansOfRank(size_t ranks) {
  constexpr size_t kOfProcess = 16384;
  return std::clamp<size_t>(kOfProcess / std::max<size_t>(1, ranks), 16, 8192);
}

// "" for one that this process can take.
std::string WhyRefused(const Assign& assign, const Schedule& schedule) {
  if (static_cast<int>(assign.process_of_rank.size()) != schedule.ranks) {
    return absl::StrFormat("the assignment places %d ranks, the schedule has %d",
                           assign.process_of_rank.size(), schedule.ranks);
  }
  if (assign.collective && assign.leases.size() != 1) {
    return absl::StrCat("collectives need a process for each rank, and this one has ", assign.leases.size());
  }
  return "";
}

}  // namespace

void RequireOfCore(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "weft: broken invariant in the worker core: %s\n", what);
  std::abort();
}

WorkerCore::Run::Row& WorkerCore::Run::RowOf(int64_t step) {
  RequireOfCore(step >= first_row, "a step is not touched after it ended");
  while (first_row + static_cast<int64_t>(rows.size()) <= step) {
    const int next = static_cast<int>(first_row + rows.size());
    Row row{edges.WaitingAt(next, first_step), std::vector<uint8_t>(n, 0), 0};
    const bool reduces_together = graph.collectives().any();
    for (int64_t i = 0; i < n; ++i) {
      row.left += IsLocal(RankAt(next * n + i));
      if (next - first_step <= edges.max_distance())
        row.waiting[i] += InitialInputs(next, static_cast<int>(i));
      // Instead of what the collective waits for by itself, its end.
      if (reduces_together && IsLocal(RankAt(next * n + i)) &&
          IsCollective(graph.JobAt(next, static_cast<int>(i))))
        row.waiting[i] += 1 - JoinedInputs(next, static_cast<int>(i));
    }
    rows.push_back(std::move(row));
  }
  return rows[step - first_row];
}

// Weights that the run begins with and the job waits for; flattened edges leave them out.
int WorkerCore::Run::InitialInputs(int step, int index) const {
  const Job job = graph.JobAt(step, index);
  if (!graph.FetchesWeights(job)) return 0;
  std::vector<Edge> before;
  graph.Predecessors(job, &before);
  return static_cast<int>(std::count_if(before.begin(), before.end(),
                                        [this](const Edge& e) { return IsInitialWeights(e) && !e.joined; }));
}

// The rank of each job, and what ranks of this process touch.
void WorkerCore::Run::PlaceJobs() {
  const Schedule& schedule = graph.schedule();
  state_of_rank.assign(schedule.ranks, -1);
  for (const RankLease& lease : assignment.leases)
    state_of_rank[lease.rank] = static_cast<int>(&lease - assignment.leases.data());
  touches.assign(assignment.leases.size(), std::vector<char>(schedule.stages, 0));
  rank_of.resize(schedule.period);
  for (int p = 0; p < schedule.period; ++p) {
    for (int64_t i = 0; i < n; ++i) {
      const Job job = graph.JobAt(p, static_cast<int>(i));
      const Rank rank = graph.RankOf(job);
      rank_of[p].push_back(rank);
      if (IsLocal(rank)) touches[state_of_rank[rank]][job.stage] = 1;
    }
  }
}

void WorkerCore::Run::AddRanks(int64_t time) {
  const Schedule& schedule = graph.schedule();
  for (const RankLease& lease : assignment.leases) {
    // Of a stage that the rank does not compute a limit says nothing, and costs a look at each dispatch.
    const std::vector<char>& touched_stages = touches[ranks.size()];
    std::vector<std::optional<int>> limits(schedule.limit ? schedule.stages : 0);
    for (int s = 0; s < static_cast<int>(limits.size()); ++s) {
      if (touched_stages[s] != 0) limits[s] = schedule.limit(lease.rank, s);
    }
    ranks.push_back(std::make_unique<RankState>(
        time, lease.rank, lease.token, std::move(limits), FirstPlace(graph, lease.rank, first_step),
        admission.TicketsOf(lease.rank, first_step), SpansOfRank(assignment.leases.size())));
    ranks.back()->measured.assign(schedule.stages, false);
    ranks.back()->visiting_versions.assign(schedule.stages, 0);
  }
  std::vector<bool> followed(schedule.ranks);
  for (Rank r = 0; r < schedule.ranks; ++r) followed[r] = IsLocal(r);
  versions.emplace(graph, HeldVersions::Steps{steps, first_step, /*saved=*/true}, std::move(followed));
}

void WorkerCore::Run::CountJobs() {
  const int period = graph.schedule().period;
  for (int p = 0; p < period; ++p) {
    for (int64_t i = 0; i < n; ++i) {
      const Rank rank = rank_of[p][i];
      if (!IsLocal(rank)) continue;
      StateOf(rank).jobs_per_step += p == 0;
      StateOf(rank).jobs_left += StepsOfPhase(steps, p, period) - StepsOfPhase(first_step, p, period);
    }
  }
}

// What the rank has of the stage; nothing where it neither holds nor computes it.
std::optional<PrepareEffect::Stage> WorkerCore::Run::StageOf(RankState& state, int s) {
  const auto& members = graph.members(s);
  const auto member = std::lower_bound(members.begin(), members.end(), state.rank);
  const bool holds = member != members.end() && *member == state.rank;
  if (!holds && touches[state_of_rank[state.rank]][s] == 0) return std::nullopt;
  PrepareEffect::Stage stage{state.rank, s, holds, false};
  if (holds) {
    const int number = static_cast<int>(member - members.begin());
    stage.saves = graph.Saves(s, number);
    stage.sums_own = graph.collective(s);
    stage.adopts = !graph.MakesVersions(s, number);
    if (graph.sharded()) {
      stage.part = number;
      stage.parts = static_cast<int>(members.size());
    }
    state.peak_weight_versions = std::max(state.peak_weight_versions, versions->Held(s, number));
  }
  if (graph.migrates()) {
    stage.migrates = true;
    stage.holds_weights = false;
  }
  return stage;
}

void WorkerCore::OnAssign(int64_t now, const Assign& assign, WorkerEffects* out) {
  const auto refuse = [&](std::string reason) {
    out->push_back(SendEffect{Failed{assign.run, std::move(reason)}});
  };
  if (run_ && (run_->aborted || run_->finishing)) {
    next_ = assign;
    return;
  }
  if (run_) return refuse(absl::StrCat("this process still works on run ", run_->assignment.run));
  absl::StatusOr<RunShape> shape = parse_(assign.spec);
  if (!shape.ok()) return refuse(std::string(shape.status().message()));
  shape->schedule.collective = assign.collective;
  if (std::string why = WhyRefused(assign, shape->schedule); !why.empty()) return refuse(std::move(why));
  run_ = std::make_unique<Run>(assign, *std::move(shape));
  run_->PlaceJobs();
  run_->AddRanks(now);
  run_->CountJobs();
  PrepareEffect prepare{assign, {}, run_->Groups()};
  for (const auto& rank : run_->ranks) {
    for (int s = 0; s < run_->graph.schedule().stages; ++s) {
      if (const auto stage = run_->StageOf(*rank, s)) prepare.stages.push_back(*stage);
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
  const int end = std::min(run.steps, run.first_step + run.edges.max_distance() + 1);
  for (int step = run.first_step; step < end; ++step) {
    for (int64_t i = 0; i < run.n; ++i) {
      const Job job = run.graph.JobAt(step, static_cast<int>(i));
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
