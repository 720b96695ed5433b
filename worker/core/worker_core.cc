#include "worker/core/worker_core.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/held_versions.h"

namespace weft {
namespace {

constexpr uint8_t kClaimed = 1, kQueued = 2, kDone = 4;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "weft: broken invariant in the worker core: %s\n", what);
  std::abort();
}

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

// Jobs of a rank whose fetched weights, or states that came, may be there at once, where they are sharded or
// migrate: the one that runs, and the next one.
constexpr int kFetchesAtOnce = 2;

}  // namespace

struct WorkerCore::RankState {
  RankState(int64_t now, Rank r, Token t, std::vector<std::optional<int>> l, std::optional<int64_t> place,
            std::optional<Tickets> tickets)
      : rank(r), token(t), ready(std::move(l), place, std::move(tickets)), clock(now) {}

  Rank rank;
  Token token;
  ReadyJobs ready;
  RankClock clock;
  // What Take gave, and what TakeBeside gave while that, a forward, ran; each until it ends.
  int64_t running = -1, beside = -1;
  bool idle() const { return running < 0 && beside < 0; }
  std::deque<int64_t> claimed;  // in claim order; ended ones leave from the front
  // Claimed jobs whose weights wait to be wanted, in claim order, and how many others with wanted weights
  // have not ended.
  std::deque<int64_t> fetches;
  int fetching = 0;
  int activations = 0, peak_activations = 0, peak_weight_versions = 0;
  std::vector<int> visiting_versions;  // by stage, of the states that are here
  std::vector<bool> measured;          // by stage: what a forward leaves
  int64_t jobs_per_step = 0, jobs_left = 0;
  bool granted = false;  // ever; before, the run has not begun for this rank
};

struct WorkerCore::Run {
  struct Row {
    std::vector<int32_t> waiting;
    std::vector<uint8_t> flags;
    int left = 0;  // jobs of this process that have not ended
  };
  struct Wanted {
    int64_t job;
    int microbatch;
  };
  // Micro-batch gradients of a job that consumes them.
  struct Intake {
    int next = 0;
    std::vector<bool> arrived;
  };

  Run(const Assign& a, RunShape shape)
      : assignment(a),
        graph(std::move(shape.schedule), shape.steps, shape.first_step),
        edges(Flatten(graph)),
        admission(graph),
        steps(shape.steps),
        first_step(shape.first_step),
        n(graph.jobs_per_step()),
        first_row(shape.first_step) {}

  // Invariant 8.
  bool FetchesInTurn(const Job& job) const {
    if (graph.migrates()) {
      const std::optional<Job> before = graph.visits().Before(job);
      return before.has_value() && !IsLocal(graph.RankOf(*before));
    }
    if (graph.schedule().residency != Residency::kSharded || !graph.FetchesWeights(job)) return false;
    // What ranks of this process hold is at hand: such a job may end before its turn would come.
    if (!graph.sharded()) return !IsLocal(graph.schedule().weights(job));
    const std::vector<Rank>& members = graph.members(job.stage);
    return !std::all_of(members.begin(), members.end(), [this](Rank r) { return IsLocal(r); });
  }
  bool IsLocal(Rank rank) const { return state_of_rank[rank] >= 0; }
  RankState& StateOf(Rank rank) { return *ranks[state_of_rank[rank]]; }
  Rank RankAt(int64_t id) const { return rank_of[(id / n) % graph.schedule().period][id % n]; }
  Job JobOf(int64_t id) const { return graph.JobAt(static_cast<int>(id / n), static_cast<int>(id % n)); }
  int64_t IdOf(const Job& job) const { return job.step * n + graph.IndexOf(job); }
  Row& RowOf(int64_t step);
  int InitialInputs(int step, int index) const;
  uint8_t& FlagsOf(int64_t id) { return RowOf(id / n).flags[id % n]; }
  // Complete before the run (invariant 2 of graph.h).
  bool IsBeforeRun(const Edge& e) const { return e.from.step < first_step; }
  bool IsInitialWeights(const Edge& e) const { return IsBeforeRun(e) && e.tensor == TensorKind::kWeights; }
  bool ConsumesGradients(const Job& job) const {
    if (HasMicrobatch(job.kind) || !graph.gradient_travels(job.stage)) return false;
    return job.kind == JobKind::kReduce || !graph.has_reduce(job.stage);
  }
  Intake& IntakeOf(int64_t id) {
    Intake& intake = intakes[id];
    if (intake.arrived.empty()) intake.arrived.assign(graph.schedule().microbatches, false);
    return intake;
  }

  // How many steps may be under way at a time.
  int StepsAtOnce() const {
    int most = 0;
    for (int s = 0; s < graph.schedule().stages; ++s)
      most = std::max(most, graph.schedule().MostStaleness(s));
    return 1 + most;
  }

  Assign assignment;
  Graph graph;
  StepEdges edges;
  AdmissionOrder admission;
  int steps, first_step;
  int64_t n;
  std::vector<int> state_of_rank;
  std::vector<std::unique_ptr<RankState>> ranks;
  std::vector<std::vector<Rank>> rank_of;  // [step mod period][index]
  std::deque<Row> rows;
  int64_t first_row;
  absl::flat_hash_map<TensorKey, Wanted> wanted;
  absl::flat_hash_map<int64_t, Intake> intakes;
  std::optional<HeldVersions> versions;  // of the ranks of this process
  HeldVersions::Versions dropped;        // not told yet
  bool prepared = false, finishing = false, failed = false, aborted = false;
  int running = 0;
};

WorkerCore::WorkerCore(ParseSpec parse) : parse_(std::move(parse)) {}
WorkerCore::~WorkerCore() = default;

WorkerCore::Run::Row& WorkerCore::Run::RowOf(int64_t step) {
  Require(step >= first_row, "a step is not touched after it ended");
  while (first_row + static_cast<int64_t>(rows.size()) <= step) {
    const int next = static_cast<int>(first_row + rows.size());
    Row row{edges.WaitingAt(next, first_step), std::vector<uint8_t>(n, 0), 0};
    for (int64_t i = 0; i < n; ++i) {
      row.left += IsLocal(RankAt(next * n + i));
      if (next - first_step <= edges.max_distance())
        row.waiting[i] += InitialInputs(next, static_cast<int>(i));
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
  return static_cast<int>(
      std::count_if(before.begin(), before.end(), [this](const Edge& e) { return IsInitialWeights(e); }));
}

uint64_t WorkerCore::run_id() const { return run_ ? run_->assignment.run : 0; }
uint64_t WorkerCore::epoch() const { return run_ ? run_->assignment.epoch : 0; }
const Graph* WorkerCore::graph() const { return run_ ? &run_->graph : nullptr; }

std::vector<Rank> WorkerCore::ranks() const {
  std::vector<Rank> ranks;
  if (run_) {
    for (const auto& r : run_->ranks) ranks.push_back(r->rank);
  }
  return ranks;
}

const RankClock& WorkerCore::ClockAt(int64_t now, Rank rank) {
  RankState& state = run_->StateOf(rank);
  // Running jobs close their own interval, with their exact times.
  if (state.idle()) state.clock.Idle(now, state.clock.cause());
  return state.clock;
}

int WorkerCore::peak_activations(Rank rank) const { return run_->StateOf(rank).peak_activations; }

int WorkerCore::peak_weight_versions(Rank rank) const { return run_->StateOf(rank).peak_weight_versions; }

int WorkerCore::weight_versions(Rank rank) const {
  const Run& run = *run_;
  int most = 0;
  if (run.graph.migrates()) {
    for (const int versions : run_->StateOf(rank).visiting_versions) most = std::max(most, versions);
    return most;
  }
  for (int s = 0; s < run.graph.schedule().stages; ++s) {
    const std::vector<Rank>& members = run.graph.members(s);
    const auto member = std::lower_bound(members.begin(), members.end(), rank);
    if (member == members.end() || *member != rank) continue;
    most = std::max(most, run.versions->Held(s, static_cast<int>(member - members.begin())));
  }
  return most;
}

TensorKey WorkerCore::KeyOf(const Edge& e) const {
  TensorKey key;
  key.run = run_->assignment.run;
  key.epoch = run_->assignment.epoch;
  key.step = e.from.step;
  key.stage = e.from.stage;
  key.microbatch = e.from.microbatch;
  key.version = e.version;
  key.part = e.part;
  key.producer = run_->graph.RankOf(e.from);
  key.consumer = run_->graph.RankOf(e.to);
  key.kind = e.tensor;
  key.use = static_cast<uint8_t>(e.to.kind);
  if (e.tensor == TensorKind::kWeights) {
    // Each reader fetches its own copy, and early steps may read the same version.
    key.step = e.to.step;
    key.microbatch = e.to.microbatch;
  } else if (e.tensor == TensorKind::kState) {
    key.part = static_cast<int32_t>(e.from.kind);
  } else if (e.tensor == TensorKind::kOrder) {
    key.version = static_cast<int32_t>(e.from.kind);
    key.part = e.to.stage * run_->graph.schedule().microbatches + e.to.microbatch;
  }
  return key;
}

void WorkerCore::OnMessage(int64_t now, const FromCoordinator& message, WorkerEffects* out) {
  if (const auto* assign = std::get_if<Assign>(&message)) return OnAssign(now, *assign, out);
  if (const auto* grant = std::get_if<Grant>(&message)) return OnGrant(now, *grant, out);
  if (const auto* shutdown = std::get_if<Shutdown>(&message)) {
    out->push_back(ExitEffect{shutdown->reason});
    return;
  }
  if (const auto* finish = std::get_if<Finish>(&message)) {
    if (!run_ || finish->run != run_->assignment.run || run_->finishing || run_->failed) return;
    run_->finishing = true;
    UpdateIdle(now);
    out->push_back(SaveEffect{});
    return;
  }
  if (const auto* abort = std::get_if<Abort>(&message)) {
    if (next_.has_value() && next_->run == abort->run) next_.reset();
    if (!run_ || abort->run != run_->assignment.run || run_->aborted) return;
    run_->failed = run_->aborted = true;
    if (run_->running == 0) out->push_back(ForgetEffect{abort->reason});
  }
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
  const int world = shape->schedule.ranks;
  if (static_cast<int>(assign.process_of_rank.size()) != world) {
    out->push_back(
        SendEffect{Failed{assign.run, absl::StrFormat("the assignment places %d ranks, the schedule has %d",
                                                      assign.process_of_rank.size(), world)}});
    return;
  }
  run_ = std::make_unique<Run>(assign, *std::move(shape));
  Run& run = *run_;
  const Schedule& schedule = run.graph.schedule();
  run.state_of_rank.assign(world, -1);
  for (const RankLease& lease : assign.leases) {
    std::vector<std::optional<int>> limits;
    if (schedule.limit) {
      for (int s = 0; s < schedule.stages; ++s) limits.push_back(schedule.limit(lease.rank, s));
    }
    run.state_of_rank[lease.rank] = static_cast<int>(run.ranks.size());
    run.ranks.push_back(std::make_unique<RankState>(now, lease.rank, lease.token, std::move(limits),
                                                    FirstPlace(run.graph, lease.rank, run.first_step),
                                                    run.admission.TicketsOf(lease.rank, run.first_step)));
    run.ranks.back()->measured.assign(schedule.stages, false);
    run.ranks.back()->visiting_versions.assign(schedule.stages, 0);
  }
  std::vector<bool> followed(world);
  for (Rank r = 0; r < world; ++r) followed[r] = run.IsLocal(r);
  run.versions.emplace(run.graph, HeldVersions::Steps{run.steps, run.first_step, /*saved=*/true},
                       std::move(followed));
  run.rank_of.resize(schedule.period);
  std::vector<std::vector<char>> touches(run.ranks.size(), std::vector<char>(schedule.stages, 0));
  for (int p = 0; p < schedule.period; ++p) {
    for (int64_t i = 0; i < run.n; ++i) {
      const Job job = run.graph.JobAt(p, static_cast<int>(i));
      const Rank rank = run.graph.RankOf(job);
      run.rank_of[p].push_back(rank);
      if (!run.IsLocal(rank)) continue;
      touches[run.state_of_rank[rank]][job.stage] = 1;
      run.StateOf(rank).jobs_per_step += p == 0;
      run.StateOf(rank).jobs_left +=
          StepsOfPhase(run.steps, p, schedule.period) - StepsOfPhase(run.first_step, p, schedule.period);
    }
  }
  PrepareEffect prepare{assign, {}};
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

void WorkerCore::OnGrant(int64_t now, const Grant& grant, WorkerEffects* out) {
  if (!run_ || grant.run != run_->assignment.run || grant.rank < 0 ||
      grant.rank >= static_cast<Rank>(run_->state_of_rank.size()) || !run_->IsLocal(grant.rank) ||
      run_->StateOf(grant.rank).token != grant.token) {
    ++stale_grants_;
    return;
  }
  if (run_->failed) return;
  RankState& rank = run_->StateOf(grant.rank);
  rank.granted = true;
  for (const Job& job : grant.jobs) Claim(now, rank, job, out);
  StartJobs(now, out);
}

void WorkerCore::Claim(int64_t now, RankState& rank, const Job& job, WorkerEffects* out) {
  Run& run = *run_;
  if (job.step < run.first_row || job.step >= run.steps) return;  // it ended before this grant came
  const int64_t id = run.IdOf(job);
  uint8_t& flags = run.FlagsOf(id);
  if (run.RankAt(id) != rank.rank || (flags & kClaimed)) return;
  flags |= kClaimed;
  rank.claimed.push_back(id);
  if (job.kind == JobKind::kForward) rank.ready.Claim(id, job.stage);
  const bool in_turn = run.FetchesInTurn(job);
  WantInputs(job, in_turn ? Inputs::kAllButWeights : Inputs::kAll, out);
  if (in_turn) {
    rank.fetches.push_back(id);
    WantWeights(rank, out);
  }
  Consider(id);
}

// Weights in turn: claim order agrees with the graph, so the first job in it that has not ended, over all
// ranks, is always among those that may fetch.
void WorkerCore::WantWeights(RankState& rank, WorkerEffects* out) {
  for (; !rank.fetches.empty() && rank.fetching < kFetchesAtOnce; ++rank.fetching) {
    WantInputs(run_->JobOf(rank.fetches.front()), Inputs::kWeights, out);
    rank.fetches.pop_front();
  }
}

void WorkerCore::WantInputs(const Job& job, Inputs which, WorkerEffects* out) {
  std::vector<Edge> edges;
  run_->graph.Predecessors(job, &edges);
  for (const Edge& e : edges) {
    const bool weights = e.tensor == TensorKind::kWeights || e.tensor == TensorKind::kState;
    const Inputs kind = weights ? Inputs::kWeights : Inputs::kAllButWeights;
    if (which != Inputs::kAll && which != kind) continue;
    if (run_->IsBeforeRun(e) && !run_->IsInitialWeights(e)) continue;
    const int32_t process = run_->assignment.process_of_rank[run_->graph.RankOf(e.from)];
    if (run_->IsLocal(run_->graph.RankOf(e.from))) continue;
    const TensorKey key = KeyOf(e);
    run_->wanted[key] = {run_->IdOf(job), e.from.microbatch};
    out->push_back(WantEffect{process, key});
  }
}

void WorkerCore::OnTensor(int64_t now, const TensorKey& key, int64_t made, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  const auto it = run_->wanted.find(key);
  if (it == run_->wanted.end()) return;
  const Run::Wanted wanted = it->second;
  run_->wanted.erase(it);
  RankState& rank = run_->StateOf(key.consumer);
  InputArrived(wanted.job, wanted.microbatch, out);
  const bool awaited = (run_->FlagsOf(wanted.job) & kQueued) != 0;
  if (rank.idle() && awaited && made > 0) rank.clock.Arrived(now, made);
  StartJobs(now, out);
}

void WorkerCore::InputArrived(int64_t id, int microbatch, WorkerEffects* out) {
  Run& run = *run_;
  const Job job = run.JobOf(id);
  if (microbatch >= 0 && !HasMicrobatch(job.kind) && !run.graph.relays(job.stage) && !run.graph.migrates()) {
    // The micro-batch's last backward on the stage has ended.
    run.versions->ReadElsewhere(job.step, job.stage, microbatch, job.member, &run.dropped);
    Drop(out);
  }
  if (microbatch >= 0 && run.ConsumesGradients(job)) run.IntakeOf(id).arrived[microbatch] = true;
  --run.RowOf(id / run.n).waiting[id % run.n];
  if (run.FlagsOf(id) & kClaimed) Consider(id);
}

// Gives a claimed job to its rank's ready jobs if it can start now.
void WorkerCore::Consider(int64_t id) {
  Run& run = *run_;
  uint8_t& flags = run.FlagsOf(id);
  if (flags & (kQueued | kDone)) return;
  const Job job = run.JobOf(id);
  bool can_start = run.RowOf(id / run.n).waiting[id % run.n] == 0;
  if (!can_start && run.ConsumesGradients(job)) {
    const Run::Intake& intake = run.IntakeOf(id);
    can_start = intake.next < static_cast<int>(intake.arrived.size()) && intake.arrived[intake.next];
  }
  if (!can_start) return;
  flags |= kQueued;
  const bool admits = job.kind == JobKind::kForward;
  run.StateOf(run.RankAt(id))
      .ready.Add(run.graph.PriorityOf(job), id, job.stage, admits, admits ? run.admission.TicketOf(job) : -1,
                 (run.graph.MarksOf(job) & kBesideForward) != 0);
}

void WorkerCore::StartJobs(int64_t now, WorkerEffects* out) {
  Run& run = *run_;
  if (!run.failed && run.prepared) {
    for (const auto& rank : run.ranks) {
      while (std::optional<StartEffect> start = TakeJob(now, *rank)) {
        Drop(out);
        out->push_back(*std::move(start));
      }
    }
  }
  UpdateIdle(now);
}

// The job that the rank can start, if there is one: at once, or beside the forward that it computes alone.
std::optional<StartEffect> WorkerCore::TakeJob(int64_t now, RankState& rank) {
  std::optional<int64_t> id;
  if (rank.idle()) {
    id = rank.ready.Take();
    if (!id.has_value()) return std::nullopt;
    rank.clock.Idle(now, IdleCause::kDispatch);
    rank.running = *id;
  } else if (run_->graph.has_pairs() && rank.beside < 0 &&
             run_->JobOf(rank.running).kind == JobKind::kForward) {
    id = rank.ready.TakeBeside();
    if (!id.has_value()) return std::nullopt;
    rank.beside = *id;
  } else {
    return std::nullopt;
  }
  ++run_->running;
  StartEffect start = MakeStart(rank, *id);
  start.beside = rank.beside == *id;
  return start;
}

StartEffect WorkerCore::MakeStart(RankState& rank, int64_t id) {
  Run& run = *run_;
  const Job job = run.JobOf(id);
  StartEffect start{rank.rank, job, {}, {}};
  start.apart = HasMicrobatch(job.kind) && run.graph.IsApart(job);
  start.gathers_weights = run.graph.sharded() && run.graph.FetchesWeights(job);
  std::vector<Edge> edges;
  run.graph.Predecessors(job, &edges);
  const bool consumes = run.ConsumesGradients(job);
  Run::Intake* intake = consumes ? &run.IntakeOf(id) : nullptr;
  const int first = consumes ? intake->next : 0;
  if (consumes) {
    while (intake->next < static_cast<int>(intake->arrived.size()) && intake->arrived[intake->next])
      ++intake->next;
    start.last = run.RowOf(id / run.n).waiting[id % run.n] == 0;
  }
  for (const Edge& e : edges) {
    if (e.tensor == TensorKind::kOrder) continue;
    if (e.tensor == TensorKind::kGradient) {
      if (e.from.microbatch >= first && e.from.microbatch < intake->next) start.gradients.push_back(KeyOf(e));
    } else if (start.last) {
      start.inputs.push_back(KeyOf(e));
    }
  }
  start.clips = run.graph.schedule().clips && !HasMicrobatch(job.kind);
  if (job.kind == JobKind::kForward || (start.apart && job.kind == run.graph.input_backward()))
    rank.peak_activations = std::max(rank.peak_activations, ++rank.activations);
  if (job.kind == JobKind::kUpdate && run.graph.relays(job.stage)) {
    // What came to it says that every backward of the step has ended. StartJobs drops what that leaves
    // unread.
    for (int b = 0; b < run.graph.schedule().microbatches; ++b)
      run.versions->ReadElsewhere(job.step, job.stage, b, job.member, &run.dropped);
  }
  start.version = run.graph.VersionOf(job);
  start.visit = VisitOf(job);
  if (start.visit.has_value()) rank.visiting_versions[job.stage] = run.graph.visits().VersionsDuring(job);
  start.keeps_version = job.kind == JobKind::kUpdate && start.last &&
                        (run.graph.migrates() ? run.graph.visits().IsReadAfter(job, start.version)
                                              : run.versions->KeepsVersion(job));
  start.relays_sum = job.kind == run.graph.final_backward() && run.graph.relays(job.stage);
  start.hand_out_gradient =
      start.relays_sum || (job.kind == run.graph.final_backward() && run.graph.gradient_travels(job.stage));
  return start;
}

std::optional<StateVisit> WorkerCore::VisitOf(const Job& job) const {
  const Graph& graph = run_->graph;
  if (!graph.migrates()) return std::nullopt;
  const Visits& visits = graph.visits();
  const Rank rank = graph.RankOf(job);
  const std::optional<Job> before = visits.Before(job), after = visits.After(job);
  StateVisit visit;
  visit.begins = !before.has_value();
  visit.arrives = before.has_value() && graph.RankOf(*before) != rank;
  visit.leaves = after.has_value() && graph.RankOf(*after) != rank;
  const int version = graph.VersionOf(job);
  visit.drops_version =
      HasMicrobatch(job.kind) && version < visits.NewestAfter(job) && !visits.IsReadAfter(job, version);
  return visit;
}

void WorkerCore::OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out) {
  Require(run_ != nullptr, "a job ends before its run is forgotten");
  Run& run = *run_;
  RankState& rank = run.StateOf(done.rank);
  const int64_t id = run.IdOf(done.job);
  Require(rank.running == id || rank.beside == id, "only a started job ends");
  (rank.running == id ? rank.running : rank.beside) = -1;
  --run.running;
  rank.clock.Job(now, done.start_ns, done.end_ns, done.job.kind, !rank.idle());
  if (run.aborted && run.running == 0) {
    out->push_back(ForgetEffect{"the run was aborted"});
    return;
  }
  if (run.failed) return UpdateIdle(now);
  if (!done.last) {
    run.FlagsOf(id) &= static_cast<uint8_t>(~kQueued);
    Consider(id);
    return StartJobs(now, out);
  }
  run.FlagsOf(id) |= kDone;
  run.intakes.erase(id);
  --rank.jobs_left;
  if (run.FetchesInTurn(done.job)) {
    --rank.fetching;
    WantWeights(rank, out);
  }
  FreeActivation(rank, done.job);
  MeasureActivation(now, rank, done, out);
  if (run.failed) return;
  PublishOutputs(done.job, out);
  CountVersions(rank, done.job, out);
  Completion completion{done.job, done.start_ns, done.end_ns, done.loss.value_or(0), done.loss.has_value()};
  if (run.graph.TotalsNorm(done.job)) completion.gradient_norm = done.gradient_norm;
  out->push_back(SendEffect{Completions{run.assignment.run, rank.rank, rank.token, {completion}}});
  while (!rank.claimed.empty() && (run.FlagsOf(rank.claimed.front()) & kDone)) rank.claimed.pop_front();
  --run.RowOf(id / run.n).left;
  while (!run.rows.empty() && run.rows.front().left == 0 && run.rows.front().flags.size() > 0) {
    // Claimed lists of other ranks no longer name jobs of this step: all of them ended.
    for (const auto& r : run.ranks) {
      while (!r->claimed.empty() && r->claimed.front() / run.n == run.first_row) r->claimed.pop_front();
    }
    run.rows.pop_front();
    ++run.first_row;
  }
  StartJobs(now, out);
}

// Every micro-batch has the same sizes, so the first forward of a stage tells for all.
void WorkerCore::MeasureActivation(int64_t now, RankState& rank, const JobDone& done, WorkerEffects* out) {
  if (done.job.kind != JobKind::kForward || !done.left_bytes.has_value() ||
      !rank.ready.tickets().has_value() || rank.measured[done.job.stage]) {
    return;
  }
  const int64_t counted = rank.ready.tickets()->left(done.job.stage);
  if (*done.left_bytes > counted) {
    return OnFailure(
        now,
        absl::StrFormat(
            "%s on rank %d left %d bytes of activations, more than the %d that the memory budget was "
            "planned with; run it without `memory`",
            Describe(done.job), rank.rank, *done.left_bytes, counted),
        out);
  }
  rank.measured[done.job.stage] = true;
  // What the halves of a backward leave between them has been counted too, and is not in the measure.
  if (run_->graph.schedule().split_backward) return;
  rank.ready.Measure(done.job.stage, *done.left_bytes);
}

// What a micro-batch had alive on its stage goes with its backward, or, where that is on another rank, with
// each.
void WorkerCore::FreeActivation(RankState& rank, const Job& job) {
  if (!HasMicrobatch(job.kind)) return;
  const bool leaves_nothing = job.kind == JobKind::kForward && run_->graph.IsApart(job);
  if (job.kind != run_->graph.final_backward() && !leaves_nothing) return;
  --rank.activations;
  if (leaves_nothing || !run_->graph.IsApart(job)) rank.ready.Release(job.stage);
}

// After its outputs, new weights among them, have been published.
void WorkerCore::CountVersions(RankState& rank, const Job& job, WorkerEffects* out) {
  Run& run = *run_;
  if (run.graph.migrates()) {
    const Visits& visits = run.graph.visits();
    rank.peak_weight_versions = std::max(rank.peak_weight_versions, visits.VersionsDuring(job));
    rank.visiting_versions[job.stage] = VisitOf(job)->leaves ? 0 : visits.VersionsAfter(job);
  } else if (HasMicrobatch(job.kind)) {
    run.versions->Read(job, &run.dropped);
  } else if (job.kind == JobKind::kUpdate) {
    rank.peak_weight_versions = std::max(rank.peak_weight_versions, run.versions->Publish(job, &run.dropped));
  }
  Drop(out);
}

void WorkerCore::Drop(WorkerEffects* out) {
  for (const HeldVersions::Version& v : run_->dropped) {
    out->push_back(DropEffect{run_->graph.members(v.stage)[v.member], v.stage, v.version});
  }
  run_->dropped.clear();
}

void WorkerCore::PublishOutputs(const Job& job, WorkerEffects* out) {
  std::vector<Edge> edges;
  run_->graph.Successors(job, &edges);
  for (const Edge& e : edges) {
    if (e.to.step < run_->steps) PublishEdge(e, out);
  }
}

void WorkerCore::PublishEdge(const Edge& e, WorkerEffects* out) {
  const Rank consumer = run_->graph.RankOf(e.to);
  const int parts = e.tensor == TensorKind::kGradient || e.tensor == TensorKind::kGradientSum
                        ? static_cast<int>(run_->graph.members(e.from.stage).size())
                        : 1;
  if (!run_->IsLocal(consumer)) {
    out->push_back(PublishEffect{run_->assignment.process_of_rank[consumer], KeyOf(e), parts});
    return;
  }
  if (e.tensor != TensorKind::kOrder) out->push_back(PublishEffect{-1, KeyOf(e), parts});
  InputArrived(run_->IdOf(e.to), e.from.microbatch, out);
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

IdleCause WorkerCore::CauseOf(const RankState& rank) const {
  const Run& run = *run_;
  if (!run.prepared || !rank.granted || run.finishing || run.failed || rank.jobs_left == 0)
    return IdleCause::kNoWork;
  if (!rank.idle()) return IdleCause::kDispatch;
  if (rank.ready.held_back()) return IdleCause::kMemory;
  if (rank.claimed.empty()) return IdleCause::kDispatch;
  const Job next = run.JobOf(rank.claimed.front());
  return HasMicrobatch(next.kind) ? IdleCause::kDependency : IdleCause::kReduce;
}

void WorkerCore::UpdateIdle(int64_t now) {
  for (const auto& rank : run_->ranks) {
    const IdleCause cause = CauseOf(*rank);
    if (cause != rank->clock.cause()) rank->clock.Idle(now, cause);
  }
}

void WorkerCore::OnSaved(int64_t now, std::vector<RankReport> reports, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  out->push_back(SendEffect{Finished{run_->assignment.run, std::move(reports)}});
  run_->finishing = run_->failed = true;
  out->push_back(ForgetEffect{""});
}

void WorkerCore::Forget(int64_t now, WorkerEffects* out) {
  run_.reset();
  if (!next_.has_value()) return;
  const Assign assign = *std::exchange(next_, std::nullopt);
  OnAssign(now, assign, out);
}

void WorkerCore::OnFailure(int64_t now, const std::string& reason, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  run_->failed = true;
  out->push_back(SendEffect{Failed{run_->assignment.run, reason}});
  UpdateIdle(now);
}

}  // namespace weft
