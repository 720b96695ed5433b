// WorkerCore: how a run begins.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/sync/catalogue.h"
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
    const bool reduces_together = graph.joint_order().any();
    for (int64_t i = 0; i < n; ++i) {
      row.left += IsLocal(RankAt(next * n + i));
      if (next - first_step <= edges.max_distance())
        row.waiting[i] += InitialInputs(next, static_cast<int>(i));
      // Instead of what the collective waits for by itself, its end.
      if (reduces_together && IsLocal(RankAt(next * n + i)) &&
          graph.IsJoint(graph.JobAt(next, static_cast<int>(i))))
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
  if (assign.collective) shape->schedule.sync = WithCollectives(shape->schedule.sync);
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
  run.state_of_rank.assign(world, -1);
  for (const RankLease& lease : assign.leases)
    run.state_of_rank[lease.rank] = static_cast<int>(&lease - assign.leases.data());
  std::vector<std::vector<char>> touches(assign.leases.size(), std::vector<char>(schedule.stages, 0));
  run.rank_of.resize(schedule.period);
  for (int p = 0; p < schedule.period; ++p) {
    for (int64_t i = 0; i < run.n; ++i) {
      const Job job = run.graph.JobAt(p, static_cast<int>(i));
      run.rank_of[p].push_back(run.graph.RankOf(job));
      const Rank rank = run.rank_of[p].back();
      if (run.IsLocal(rank)) touches[run.state_of_rank[rank]][job.stage] = 1;
    }
  }
  for (const RankLease& lease : assign.leases) {
    // Of a stage that the rank does not compute a limit says nothing, and costs a look at each dispatch.
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
    for (int64_t i = 0; i < run.n; ++i) {
      const Rank rank = run.rank_of[p][i];
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
        stage.saves = run.graph.sync(s).holder(number).saves;
        stage.sums_own = run.graph.sync(s).reduces_jointly();
        stage.adopts = !run.graph.sync(s).holder(number).steps;
        if (run.graph.sync(s).layout() == Layout::kSliced) {
          stage.part = number;
          stage.parts = static_cast<int>(members.size());
        }
        int& peak = run.ranks[r]->peak_weight_versions;
        peak = std::max(peak, run.versions->Held(s, number));
      }
      if (run.graph.route() != nullptr) {
        stage.state_travels = true;
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
  if (run_->graph.route() == nullptr) run_->versions->DropUnread(&run_->dropped);
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
