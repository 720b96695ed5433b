#include "worker/core/worker_run.h"

#include <algorithm>
#include <utility>

#include "schedules/dispatch/dispatch.h"
#include "schedules/sync/saving.h"

namespace weft {
namespace {

// Returns the credit of a rank: enough that it never waits for a grant though completions are reported only
// every few milliseconds, bounded so that a grant stays a small message.
int32_t CreditFor(int jobs_per_step) { return std::clamp(4 * jobs_per_step, 64, 4096); }

// Returns true if the job needs the forward: then it is ready when that is launched, and must not be done
// beside it.
bool Needs(const Graph& graph, const Job& job, const Job& forward) {
  std::vector<Edge> edges;
  graph.Predecessors(job, &edges);
  return std::any_of(edges.begin(), edges.end(), [&](const Edge& e) { return e.from == forward; });
}

// Returns the delay of a job, or round, that the rank took at `taken` and now knows to be done (Completion).
int64_t DelayOf(int64_t now, int64_t taken, const JobDone& done) {
  const int64_t reported = done.last ? done.end_ns - done.start_ns : 0;
  return std::max<int64_t>(0, now - taken - reported);
}

// Returns how many jobs of a rank the device is given at once. Within a budget, backwards that bring
// offloaded activations back are given one by one: their copies begin at once, beside those of the job
// before.
int LaunchAhead(const RunTerms& terms, int launch_ahead) {
  const auto& policies = terms.activations;
  const bool offloads =
      std::find(policies.begin(), policies.end(), ActivationPolicy::kOffload) != policies.end();
  return terms.memory.has_value() && offloads ? 1 : launch_ahead;
}

}  // namespace

WorkerRun::WorkerRun(int64_t now, const Assign& assign, LocalRun::Shape shape, int launch_ahead)
    : run_(assign, std::move(shape)),
      launch_ahead_(LaunchAhead(run_.graph().terms(), launch_ahead)),
      admission_(run_.graph()),
      given_(run_.graph()),
      computed_(FindComputedStages(run_, run_.tables()->jobs)),
      ranks_(now, run_, admission_, computed_),
      pending_(run_, admission_, &ranks_),
      wants_(run_),
      versions_(run_),
      snapshots_(run_.graph()),
      copies_(run_),
      versions_kept_for_(run_.first_step()) {
  if (!assign.kept.empty()) state_ = State::kAwaited;
}

PrepareEffect WorkerRun::Preparation() const {
  return {run_.assignment(), StagesToPrepare(run_, computed_), pending_.JointGroups(), run_.run()};
}

void WorkerRun::OnPrepared(int64_t now, WorkerEffects* out) {
  prepared_ = true;
  ranks_.TouchAll();
  const uint64_t run = run_.assignment().run;
  out->push_back(SendEffect{Prepared{run}});
  for (const auto& r : ranks_.all()) {
    const int jobs = static_cast<int>(r->jobs_per_step) * run_.StepsAtOnce();
    out->push_back(SendEffect{Credit{run, r->rank, r->token, CreditFor(jobs)}});
  }
  if (state_ == State::kHere) BeginVersions(out);
  UpdateIdle(now);
}

void WorkerRun::BeginVersions(WorkerEffects* out) {
  PublishInitialWeights(out);
  KeepVersionsForCopies();
  versions_.DropUnread(out);
}

void WorkerRun::OnResumed(int64_t now, WorkerEffects* out) {
  state_ = State::kHere;
  ranks_.TouchAll();
  BeginVersions(out);
  StartJobs(now, out);
}

bool WorkerRun::InstallsLate(const Job& update) const {
  return update.kind == JobKind::kUpdate &&
         run_.graph().protocol(update.stage).holder(update.member).installs_late;
}

// Some fetch them; and what is installed late in the first step is what the run begins with.
void WorkerRun::PublishInitialWeights(WorkerEffects* out) {
  std::vector<Edge> edges;
  const int end = std::min(run_.steps(), run_.first_step() + run_.tables()->edges.max_distance() + 1);
  for (int step = run_.first_step(); step < end; ++step) {
    for (int i = 0; i < run_.tables()->jobs.size(); ++i) {
      const Job job = pending_.JobOf(MakeJobId(step, i));
      if (HasMicrobatch(job.kind) ? !run_.graph().FetchesWeights(job) : !InstallsLate(job)) continue;
      edges.clear();
      run_.graph().Predecessors(job, &edges);
      for (const Edge& e : edges) {
        if (run_.IsInitialWeights(e) && run_.IsLocal(run_.graph().RankOf(e.from))) PublishEdge(e, out);
      }
    }
  }
}

bool WorkerRun::Takes(const Grant& grant) const {
  return grant.run == run_.assignment().run && run_.HasRank(grant.rank) &&
         StateOf(grant.rank).token == grant.token;
}

void WorkerRun::OnGrant(int64_t now, const Grant& grant, WorkerEffects* out) {
  LocalRank& rank = ranks_.Of(grant.rank);
  rank.granted = true;
  ranks_.Touch(rank);
  if (state_ == State::kAwaited) {
    state_ = State::kWanted;
    ranks_.TouchAll();
    copies_.Fetch(out);
  }
  for (const Job& job : grant.jobs) {
    for (const Job& taker : pending_.BeginTaking(rank, job.step))
      wants_.Claim(now, rank.rank, taker, /*room=*/true, out);
    if (pending_.Claim(rank, job) && !pending_.Takes(job)) WantInputs(now, rank, job, out);
  }
  StartJobs(now, out);
}

void WorkerRun::WantInputs(int64_t now, LocalRank& rank, const Job& job, WorkerEffects* out) {
  const std::optional<ActivationMemory>& memory = run_.graph().terms().memory;
  const bool counts_copies =
      job.kind == JobKind::kForward && memory.has_value() && memory->ReceivedOf(job.stage) > 0;
  wants_.Claim(now, rank.rank, job, /*room=*/!counts_copies, out);
  if (!counts_copies) return;
  rank.unwanted.emplace(admission_.TicketOf(job), job);
  WantAdmitted(now, rank, out);
}

void WorkerRun::WantAdmitted(int64_t now, LocalRank& rank, WorkerEffects* out) {
  for (auto first = rank.unwanted.begin(); first != rank.unwanted.end() && rank.ready.HasTicket(first->first);
       first = rank.unwanted.erase(first)) {
    wants_.ClaimRest(now, first->second, out);
  }
}

void WorkerRun::OnTensor(int64_t now, const TensorKey& key, const TensorArrival& arrival,
                         WorkerEffects* out) {
  if (key.kind == TensorKind::kCopy) return copies_.Arrived(key, out);
  const std::optional<TensorWants::Want> want = wants_.Take(key);
  if (!want.has_value()) return;
  LocalRank& rank = ranks_.Of(key.consumer);
  // `now` is of the moment in which a driver began to look, and may be before that in which it was made.
  if (key.kind != TensorKind::kOrder)
    rank.Keep({key.producer, key.kind, pending_.JobOf(want->job), want->since, arrival.made_ns,
               std::max(now, arrival.made_ns), arrival.bytes});
  InputArrived(want->job, want->microbatch, out);
  const bool awaited = pending_.IsQueued(want->job);
  if (rank.in_flight.idle() && awaited && arrival.made_ns > 0) rank.clock.Arrived(now, arrival.made_ns);
  StartJobs(now, out);
}

void WorkerRun::OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out) {
  pending_.JointOperationDone(rank, job);
  versions_.SumMade(job, out);
  StartJobs(now, out);
}

void WorkerRun::InputArrived(JobId id, int microbatch, WorkerEffects* out) {
  if (microbatch >= 0) versions_.GradientArrived(pending_.JobOf(id), microbatch, out);
  pending_.InputArrived(id, microbatch);
}

void WorkerRun::StartJobs(int64_t now, WorkerEffects* out) {
  if (!failed_ && prepared_ && state_ == State::kHere) {
    ranks_.ForTouched([&](LocalRank& rank) {
      while (std::optional<StartEffect> start = TakeJob(now, rank, out)) out->push_back(*std::move(start));
    });
  }
  UpdateIdle(now);
}

// Returns the job that the rank can start, if there is one: at once, or beside the forward that it computes
// alone.
std::optional<StartEffect> WorkerRun::TakeJob(int64_t now, LocalRank& rank, WorkerEffects* out) {
  bool waits = false;
  std::optional<JobId> id = TakeOverlapped(rank, &waits);
  const bool overlapped = id.has_value();
  if (!overlapped && !waits && rank.in_flight.idle()) {
    // A job that begins a joint operation gives the device no work to be ahead with.
    const std::optional<JobId> next = rank.ready.Next();
    const bool begins = next.has_value() && pending_.BeginsJointly(pending_.JobOf(*next));
    if (begins || rank.in_flight.CountComputing(/*overlapped=*/false) < launch_ahead_) id = rank.ready.Take();
  }
  if (!id.has_value()) return std::nullopt;
  if (rank.in_flight.idle()) rank.clock.Idle(now, IdleCause::kDispatch);
  rank.in_flight.Start(now, *id, overlapped, pending_.BeginsJointly(pending_.JobOf(*id)));
  ++running_;
  StartEffect start = MakeStart(rank, *id, out);
  start.overlapped = overlapped;
  return start;
}

// Returns the job to start beside the forward in flight. `waits`: the next job starts beside that forward,
// and not yet.
std::optional<JobId> WorkerRun::TakeOverlapped(LocalRank& rank, bool* waits) const {
  if (!run_.graph().has_pairs()) return std::nullopt;
  const JobId newest = rank.in_flight.newest_in_turn();
  if (newest < 0) return std::nullopt;
  const Job forward = pending_.JobOf(newest);
  const std::optional<JobId> next = rank.ready.NextOverlapped();
  if (forward.kind != JobKind::kForward || !next.has_value()) return std::nullopt;
  if (!rank.in_flight.IsRunning(newest) && Needs(run_.graph(), pending_.JobOf(*next), forward))
    return std::nullopt;
  *waits =
      rank.in_flight.has_overlapped() || rank.in_flight.CountComputing(/*overlapped=*/true) >= launch_ahead_;
  return *waits ? std::nullopt : rank.ready.TakeOverlapped();
}

StartEffect WorkerRun::MakeStart(LocalRank& rank, JobId id, WorkerEffects* out) {
  const Graph& graph = run_.graph();
  const Job job = pending_.JobOf(id);
  StartEffect start{rank.rank, job, {}, {}};
  graph.Operations(job, &start.operations);
  start.version = graph.VersionOf(job);
  pending_.AddInputs(id, &start);
  if (HasMicrobatch(job.kind) && start.round == JobRound::kBeginJoint) return start;
  if (job.kind == JobKind::kForward || start.Does(Operation::kRemakeForward)) rank.activations.Begin();
  versions_.Started(rank.rank, job, out);
  start.has_state = graph.route() != nullptr;
  if (job.kind != JobKind::kUpdate || !start.last()) return start;
  start.leaves = {OldVersionOf(job, start.version), snapshots_.IsTakenBehind(job),
                  copies_.IsTakenBehind(job)};
  if (start.leaves.copy) copies_.Expect(job, out);
  return start;
}

// Returns what becomes of the version that an update begins with.
OldVersion WorkerRun::OldVersionOf(const Job& update, int version) {
  if (versions_.KeepsVersion(update, version)) return OldVersion::kStays;
  const Graph& graph = run_.graph();
  const bool is_saved = graph.route() == nullptr && update.step + 1 == run_.steps() && Saves(graph, update);
  return is_saved && graph.schedule().MaxStaleness(update.stage) > 0 ? OldVersion::kPutAside
                                                                     : OldVersion::kWrittenOver;
}

void WorkerRun::OnJobLaunched(int64_t now, Rank number, const Job& job, bool last,
                              std::optional<int64_t> activation_bytes, WorkerEffects* out) {
  LocalRank& rank = ranks_.Of(number);
  const JobId id = run_.IdOf(job);
  rank.in_flight.Launch(id);
  rank.clock.Launched();
  ranks_.Touch(rank);
  if (failed_) return UpdateIdle(now);
  if (!last) return NextRound(now, id, out);
  if (HandOn(now, rank, job, activation_bytes, Outputs::kAtLaunch, out)) StartJobs(now, out);
}

void WorkerRun::OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out) {
  LocalRank& rank = ranks_.Of(done.rank);
  const JobId id = run_.IdOf(done.job);
  bool overlapped = false;
  const RankClock::Given given = rank.in_flight.End(id, done.launched, &overlapped);
  --running_;
  ranks_.Touch(rank);
  rank.clock.Job(now, done.start_ns, done.end_ns, done.job.kind, overlapped, !rank.in_flight.empty(),
                 done.launched ? given : RankClock::Given());
  const int64_t delay_ns = done.launched ? 0 : DelayOf(now, given.at, done);
  if (aborted_ && running_ == 0) {
    out->push_back(ForgetEffect{});
    return;
  }
  if (failed_) return UpdateIdle(now);
  if (!done.last) {
    if (done.launched) return StartJobs(now, out);
    rank.rounds_ns[id] += delay_ns;
    return NextRound(now, id, out);
  }
  --rank.jobs_remaining;
  wants_.Ended(now, rank.rank, done.job, out);
  if (done.launched) {
    if (FreesWhenDone()) {
      rank.activations.End(done.job);
      WantAdmitted(now, rank, out);
    }
    PublishOutputs(done.job, Outputs::kWhenDone, out, done.end_ns);
  } else if (!HandOn(now, rank, done.job, done.activation_bytes, Outputs::kAll, out)) {
    return;
  }
  Completion completion{done.job, done.start_ns, done.end_ns, done.loss.value_or(0), done.loss.has_value()};
  if (run_.graph().TotalsNorm(done.job)) completion.gradient_norm = done.gradient_norm;
  completion.hashes = done.hashes;
  const int64_t rounds_ns = rank.TakeRounds(id);
  completion.delay_ns = done.launched ? 0 : delay_ns + rounds_ns;
  const bool step_ends = pending_.JobEnded(StepOf(id));
  out->push_back(
      SendEffect{Completions{run_.assignment().run, rank.rank, rank.token, {completion}}, step_ends});
  LeaveEndedSteps(out);
  StartJobs(now, out);
}

void WorkerRun::OnTensorTaken(int64_t now, const TakenTensor& taken, WorkerEffects* out) {
  LocalRank& rank = ranks_.Of(taken.rank);
  for (const Job& job : taken.waiting) pending_.Taken(run_.IdOf(job));
  if (taken.waiting.empty()) {
    rank.ready.ReleaseGradient(taken.stage);
    ranks_.Touch(rank);
    WantAdmitted(now, rank, out);
  }
  StartJobs(now, out);
}

void WorkerRun::NextRound(int64_t now, JobId id, WorkerEffects* out) {
  pending_.NextRound(id);
  StartJobs(now, out);
}

bool WorkerRun::HandOn(int64_t now, LocalRank& rank, const Job& job, std::optional<int64_t> activation_bytes,
                       Outputs outputs, WorkerEffects* out) {
  pending_.NoteDone(rank, run_.IdOf(job));
  const bool frees = outputs == Outputs::kAll || !FreesWhenDone();
  if (frees) rank.activations.End(job);
  const std::string failure = rank.activations.Measure(job, activation_bytes);
  if (!failure.empty()) {
    OnFailure(now, {run_.assignment().run, failure}, out);
    return false;
  }
  WantAdmitted(now, rank, out);
  PublishOutputs(job, outputs, out);
  const bool snapshot = snapshots_.IsTakenBehind(job);
  versions_.Ended(rank.rank, job, snapshot + copies_.IsTakenBehind(job), out);
  if (snapshot) snapshots_.NoteTaken(job);
  return true;
}

// Publishes the outputs. An order edge to another rank brings no tensor whose bytes could be waited for: it
// is handed on when the job is done.
void WorkerRun::PublishOutputs(const Job& job, Outputs outputs, WorkerEffects* out, int64_t made) {
  std::vector<Edge> edges;
  run_.tables()->edges.AppendSuccessors(run_.graph(), job, &edges);
  for (const Edge& e : edges) {
    if (e.to.step >= run_.steps()) continue;
    const bool when_done =
        e.tensor == TensorKind::kOrder && run_.graph().RankOf(e.to) != run_.graph().RankOf(job);
    if (outputs == Outputs::kWhenDone && !when_done) NoteMade(e.to, made);
    if (outputs == Outputs::kAll || when_done == (outputs == Outputs::kWhenDone)) PublishEdge(e, out);
  }
}

void WorkerRun::PublishEdge(const Edge& e, WorkerEffects* out) {
  if (e.joined) return;  // the joint operation waits for it
  const Rank consumer = run_.graph().RankOf(e.to);
  const int parts = e.tensor == TensorKind::kGradient || e.tensor == TensorKind::kGradientSum
                        ? static_cast<int>(run_.graph().members(e.from.stage).size())
                        : 1;
  if (!run_.IsLocal(consumer)) {
    out->push_back(PublishEffect{run_.ProcessOf(consumer), run_.KeyOf(e), parts, AwaitTaking(e)});
    return;
  }
  if (e.tensor != TensorKind::kOrder) out->push_back(PublishEffect{-1, run_.KeyOf(e), parts, AwaitTaking(e)});
  if (run_.graph().BeginsJointly(e)) pending_.JointInputArrived(e.to);
  InputArrived(run_.IdOf(e.to), e.from.microbatch, out);
}

std::optional<TakenTensor> WorkerRun::AwaitTaking(const Edge& edge) {
  const Graph& graph = run_.graph();
  std::vector<Job> waiting = given_.JobsBehind(graph, edge);
  std::erase_if(waiting,
                [&](const Job& job) { return job.step < run_.first_step() || job.step >= run_.steps(); });
  if (waiting.empty()) return std::nullopt;
  for (const Job& job : waiting) pending_.AwaitTaking(run_.IdOf(job));
  return TakenTensor{run_.assignment().run, run_.assignment().epoch, graph.RankOf(edge.from), edge.from.stage,
                     std::move(waiting)};
}

void WorkerRun::NoteMade(const Job& consumer, int64_t made) {
  const Rank rank = run_.graph().RankOf(consumer);
  if (run_.IsLocal(rank)) ranks_.Of(rank).in_flight.NoteMade(run_.IdOf(consumer), made);
}

void WorkerRun::LeaveEndedSteps(WorkerEffects* out) {
  while (pending_.FirstHasEnded()) {
    copies_.StepEnded(pending_.first_step(), out);
    pending_.LeaveFirst();
    KeepVersionsForCopies();
  }
}

// No update of a step behind these has begun, so nothing that they need has been dropped.
void WorkerRun::KeepVersionsForCopies() {
  const int end = pending_.first_step() + run_.StepsAtOnce() + run_.graph().schedule().MaxStaleness() + 1;
  for (int& step = versions_kept_for_; step <= end; ++step) {
    if (copies_.AreMade(step)) versions_.AddSnapshot(step);
  }
}

int WorkerRun::AnnounceSnapshot(int step) {
  if (step - 1 < pending_.first_step() || step >= run_.steps() || snapshots_.IsAnnounced(step)) return -1;
  int pieces = 0;
  const JobTable& jobs = run_.tables()->jobs;
  for (int i = 0; i < jobs.size(); ++i) {
    const JobId id = MakeJobId(step - 1, i);
    const Job job = jobs.JobOf(id);
    if (job.kind != JobKind::kUpdate || !run_.IsLocal(jobs.RankOf(id)) || !Saves(run_.graph(), job)) continue;
    if (!pending_.IsWaiting(id)) return -1;
    ++pieces;
  }
  if (pieces == 0) return 0;
  snapshots_.Announce(step, pieces);
  versions_.AddSnapshot(step);
  return pieces;
}

void WorkerRun::OnFailure(int64_t now, Failed failure, WorkerEffects* out) {
  if (failed_) return;
  failed_ = true;
  ranks_.TouchAll();
  out->push_back(SendEffect{std::move(failure)});
  UpdateIdle(now);
}

void WorkerRun::Abort(WorkerEffects* out) {
  if (aborted_) return;
  failed_ = aborted_ = true;
  ranks_.TouchAll();
  if (running_ == 0) out->push_back(ForgetEffect{});
}

void WorkerRun::Finish(int64_t now) {
  finishing_ = true;
  ranks_.TouchAll();
  UpdateIdle(now);
}

IdleCause WorkerRun::CauseOf(const LocalRank& rank) const {
  if (!prepared_ || !rank.granted || finishing_ || failed_ || rank.jobs_remaining == 0)
    return IdleCause::kNoWork;
  if (state_ != State::kHere) return IdleCause::kRecovery;
  if (!rank.in_flight.idle()) return IdleCause::kDispatch;
  // The device has done the next job's inputs, if it computes nothing, and that is not known yet.
  if (!rank.in_flight.empty() && rank.ready.Next().has_value()) return IdleCause::kDispatch;
  if (const auto held = rank.ready.HeldBackBy(); held.has_value()) return *held;
  if (rank.claimed.empty()) return IdleCause::kDispatch;
  const JobId id = rank.claimed.front();
  const Job next = pending_.JobOf(id);
  if (pending_.AwaitsTakings(id)) return IdleCause::kMemory;
  if (pending_.AwaitsGather(id)) return IdleCause::kTransfer;
  return HasMicrobatch(next.kind) ? IdleCause::kDependency : IdleCause::kReduce;
}

void WorkerRun::UpdateIdle(int64_t now) {
  ranks_.UpdateIdle(now, [this](const LocalRank& rank) { return CauseOf(rank); });
}

}  // namespace weft
