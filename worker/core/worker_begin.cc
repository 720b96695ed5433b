// Implements how WorkerCore begins a run.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/sync/catalogue.h"
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

// "" for one that this process can take.
std::string WhyRefused(const Assign& assign, const Schedule& schedule) {
  if (static_cast<int>(assign.process_of_rank.size()) != schedule.ranks) {
    return absl::StrFormat("the assignment places %d ranks, the schedule has %d",
                           assign.process_of_rank.size(), schedule.ranks);
  }
  if (assign.reduction_mode == ReductionMode::kFast && assign.leases.size() != 1) {
    return absl::StrCat("collectives need a process for each rank, and this one has ", assign.leases.size());
  }
  return "";
}

}  // namespace

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
  options.rule = [this](const Job& job, const Edges& predecessors) {
    const auto counts = [this](const Edge& e) {
      return !e.joined && (!IsBeforeRun(e) || e.tensor == TensorKind::kWeights);
    };
    return static_cast<int>(std::count_if(predecessors.begin(), predecessors.end(), counts)) +
           (graph.IsJoint(job) ? 1 : 0);
  };
  return options;
}

StepProgress::Step& WorkerCore::Run::StepWith(JobId id) {
  Require(StepOf(id) >= progress.first_step(), "a step is not touched after it ended");
  return progress.Open(StepOf(id));
}

void WorkerCore::Run::FindTouchedStages() {
  const Schedule& schedule = graph.schedule();
  const JobTable& jobs = progress.jobs();
  touches.assign(assignment.leases.size(), std::vector<char>(schedule.stages, 0));
  for (int p = 0; p < schedule.period; ++p) {
    for (int i = 0; i < jobs.size(); ++i) {
      const Rank rank = jobs.RanksAt(p)[i];
      if (IsLocal(rank)) touches[state_of_rank[rank]][jobs.First(i).stage] = 1;
    }
  }
}

void WorkerCore::Run::AddRanks(int64_t time) {
  const Schedule& schedule = graph.schedule();
  for (const RankLease& lease : assignment.leases) {
    // A limit on a stage that the rank does not compute says nothing, and costs a look at each dispatch.
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
    for (const Rank rank : progress.jobs().RanksAt(p)) {
      if (!IsLocal(rank)) continue;
      StateOf(rank).jobs_per_step += p == 0;
      StateOf(rank).jobs_left += StepsOfPhase(steps, p, period) - StepsOfPhase(first_step, p, period);
    }
  }
}

std::optional<PrepareEffect::Stage> WorkerCore::Run::StageOf(RankState& state, int s) {
  const auto& members = graph.members(s);
  const auto member = std::lower_bound(members.begin(), members.end(), state.rank);
  const bool holds = member != members.end() && *member == state.rank;
  if (!holds && touches[state_of_rank[state.rank]][s] == 0) return std::nullopt;
  PrepareEffect::Stage stage{state.rank, s, holds, false};
  if (holds) {
    const int number = static_cast<int>(member - members.begin());
    const Protocol& sync = graph.sync(s);
    stage.saves = sync.holder(number).saves;
    stage.sums_own = sync.reduces_jointly();
    stage.adopts = !sync.holder(number).steps;
    if (sync.layout() == Layout::kSliced) {
      stage.part = number;
      stage.parts = static_cast<int>(members.size());
    }
    state.peak_weight_versions = std::max(state.peak_weight_versions, versions->Held(s, number));
  }
  if (graph.route() != nullptr) {
    stage.state_travels = true;
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
  shape->schedule.sync = ReducedBy(assign.reduction_mode, shape->schedule.sync);
  if (std::string why = WhyRefused(assign, shape->schedule); !why.empty()) return refuse(std::move(why));
  run_ = std::make_unique<Run>(assign, *std::move(shape));
  run_->FindTouchedStages();
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
  if (run_->graph.route() == nullptr) run_->versions->DropUnread(&run_->dropped);
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
