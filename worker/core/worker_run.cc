#include "worker/core/worker_run.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/require.h"
#include "schedules/dispatch/dispatch.h"
#include "schedules/sync/saving.h"

namespace weft {
namespace {

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

// Returns true if the job needs the forward: then it is ready when that is launched, and must not be done
// beside it.
bool Needs(const Graph& graph, const Job& job, const Job& forward) {
  std::vector<Edge> edges;
  graph.Predecessors(job, &edges);
  return std::any_of(edges.begin(), edges.end(), [&](const Edge& e) { return e.from == forward; });
}

}  // namespace

WorkerRun::WorkerRun(int64_t now, const Assign& assign, LocalRun::Shape shape, int launch_ahead)
    : launch_ahead_(launch_ahead),
      run_(assign, std::move(shape)),
      admission_(run_.graph()),
      progress_(run_.graph(), ProgressOptions(), run_.tables()),
      computed_(FindComputedStages(run_, progress_.jobs())),
      wants_(run_),
      intake_(run_.graph()),
      joint_(run_),
      versions_(run_),
      snapshots_(run_.graph()),
      copies_(run_),
      versions_kept_for_(run_.first_step()) {
  if (!assign.kept.empty()) state_ = State::kAwaited;
  AddRanks(now);
}

// A job waits for weights that the run begins with, as for others; and for the end of its joint operation
// instead of what that waits for by itself.
StepProgress::Options WorkerRun::ProgressOptions() const {
  StepProgress::Options options;
  options.first_step = run_.first_step();
  for (Rank r = 0; r < static_cast<Rank>(run_.assignment().process_of_rank.size()); ++r)
    options.followed.push_back(run_.IsLocal(r));
  options.rule = [this](const Job& job, const Edges& predecessors) {
    const auto counts = [this](const Edge& e) {
      return !e.joined && (!run_.IsBeforeRun(e) || e.tensor == TensorKind::kWeights);
    };
    return static_cast<int>(std::count_if(predecessors.begin(), predecessors.end(), counts)) +
           (run_.graph().IsJoint(job) ? 1 : 0);
  };
  return options;
}

void WorkerRun::AddRanks(int64_t now) {
  const Schedule& schedule = run_.graph().schedule();
  const std::vector<RankWork> work = CountWork(run_, progress_.jobs());
  for (const RankLease& lease : run_.assignment().leases) {
    // A limit on a stage that the rank does not compute says nothing, and costs a look at each dispatch.
    const std::vector<char>& computed = computed_[ranks_.size()];
    std::vector<std::optional<int>> limits(schedule.limit ? schedule.stages : 0);
    for (int s = 0; s < static_cast<int>(limits.size()); ++s) {
      if (computed[s] != 0) limits[s] = schedule.limit(lease.rank, s);
    }
    ReadyJobs ready(std::move(limits), FirstPlace(run_.graph(), lease.rank, run_.first_step()),
                    admission_.TicketsOf(lease.rank, run_.first_step()));
    ranks_.push_back(std::make_unique<LocalRank>(now, lease, run_.graph(), std::move(ready),
                                                 SpansOfRank(run_.assignment().leases.size())));
    ranks_.back()->jobs_per_step = work[ranks_.size() - 1].jobs_per_step;
    ranks_.back()->jobs_remaining = work[ranks_.size() - 1].jobs;
  }
}

StepProgress::Step& WorkerRun::StepWith(JobId id) {
  Require(StepOf(id) >= progress_.first_step(), "a step is not touched after it ended");
  return progress_.Open(StepOf(id));
}

PrepareEffect WorkerRun::Preparation() const {
  return {run_.assignment(), StagesToPrepare(run_, computed_), joint_.Groups(), run_.run()};
}

void WorkerRun::OnPrepared(int64_t now, WorkerEffects* out) {
  prepared_ = true;
  TouchAll();
  const uint64_t run = run_.assignment().run;
  out->push_back(SendEffect{Prepared{run}});
  for (const auto& r : ranks_) {
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
  TouchAll();
  BeginVersions(out);
  StartJobs(now, out);
}

void WorkerRun::PublishInitialWeights(WorkerEffects* out) {
  std::vector<Edge> edges;
  const int end = std::min(run_.steps(), run_.first_step() + progress_.edges().max_distance() + 1);
  for (int step = run_.first_step(); step < end; ++step) {
    for (int i = 0; i < progress_.jobs().size(); ++i) {
      const Job job = JobOf(MakeJobId(step, i));
      if (!run_.graph().FetchesWeights(job)) continue;
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
  LocalRank& rank = RankOf(grant.rank);
  rank.granted = true;
  Touch(rank);
  if (state_ == State::kAwaited) {
    state_ = State::kWanted;
    TouchAll();
    copies_.Fetch(out);
  }
  for (const Job& job : grant.jobs) Claim(now, rank, job, out);
  StartJobs(now, out);
}

void WorkerRun::Claim(int64_t now, LocalRank& rank, const Job& job, WorkerEffects* out) {
  if (job.step < progress_.first_step() || job.step >= run_.steps())
    return;  // it ended before this grant came
  const JobId id = run_.IdOf(job);
  uint8_t& flags = FlagsOf(id);
  if (progress_.jobs().RankOf(id) != rank.rank || (flags & kClaimed)) return;
  flags |= kClaimed;
  rank.claimed.push_back(id);
  if (job.kind == JobKind::kForward) rank.ready.Claim(id, job.stage);
  wants_.Claim(now, rank.rank, job, out);
  Consider(id);
}

void WorkerRun::OnTensor(int64_t now, const TensorKey& key, const TensorArrival& arrival,
                         WorkerEffects* out) {
  if (key.kind == TensorKind::kCopy) return copies_.Arrived(key, out);
  const std::optional<TensorWants::Want> want = wants_.Take(key);
  if (!want.has_value()) return;
  LocalRank& rank = RankOf(key.consumer);
  if (key.kind != TensorKind::kOrder)
    rank.Keep({key.producer, key.kind, JobOf(want->job), want->since, arrival.made_ns, now, arrival.bytes});
  InputArrived(want->job, want->microbatch, out);
  const bool awaited = (FlagsOf(want->job) & kQueued) != 0;
  if (rank.in_flight.idle() && awaited && arrival.made_ns > 0) rank.clock.Arrived(now, arrival.made_ns);
  StartJobs(now, out);
}

void WorkerRun::OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out) {
  const JobId id = run_.IdOf(job);
  Require(progress_.jobs().RankOf(id) == rank && run_.graph().IsJoint(job) && joint_.HasBegun(job),
          "only a joint operation that was begun is over");
  versions_.SumMade(job, out);
  --MissingOf(id);
  Consider(id);
  StartJobs(now, out);
}

void WorkerRun::InputArrived(JobId id, int microbatch, WorkerEffects* out) {
  const Job job = JobOf(id);
  if (microbatch >= 0) {
    versions_.GradientArrived(job, microbatch, out);
    if (intake_.IsConsumer(job)) intake_.Arrived(id, microbatch);
  }
  --MissingOf(id);
  Touch(RankWith(id));
  if (FlagsOf(id) & kClaimed) Consider(id);
}

// Gives a claimed job to its rank's ready jobs if it can start now.
void WorkerRun::Consider(JobId id) {
  LocalRank& rank = RankWith(id);
  Touch(rank);
  uint8_t& flags = FlagsOf(id);
  if (flags & (kQueued | kDone)) return;
  const Job job = JobOf(id);
  bool can_start = MissingOf(id) == 0;
  const bool joins = joint_.IsNext(job);
  if (joins) {
    can_start = joint_.CanBegin(job);
  } else if (!can_start && !run_.graph().IsJoint(job) && intake_.IsConsumer(job)) {
    can_start = intake_.HasNext(id);
  }
  if (!can_start) return;
  flags |= kQueued;
  // A gather goes before everything: others wait for it, and it needs the place of the job that has just
  // ended, not that of the next.
  const bool gathers = joins && run_.graph().GathersWeights(job);
  const bool admits = job.kind == JobKind::kForward && !gathers;
  rank.ready.Add(gathers ? INT64_MIN : run_.graph().PriorityOf(job), id, job.stage, admits,
                 admits ? admission_.TicketOf(job) : -1, (run_.graph().MarksOf(job) & kOverlapsForward) != 0);
}

void WorkerRun::StartJobs(int64_t now, WorkerEffects* out) {
  if (!failed_ && prepared_ && state_ == State::kHere) {
    std::sort(touched_.begin(), touched_.end());
    for (const int touched : touched_) {
      while (std::optional<StartEffect> start = TakeJob(now, *ranks_[touched], out))
        out->push_back(*std::move(start));
    }
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
    const bool begins = next.has_value() && joint_.IsNext(JobOf(*next));
    if (begins || rank.in_flight.CountComputing(/*overlapped=*/false) < launch_ahead_) id = rank.ready.Take();
  }
  if (!id.has_value()) return std::nullopt;
  if (rank.in_flight.idle()) rank.clock.Idle(now, IdleCause::kDispatch);
  rank.in_flight.Start(now, *id, overlapped, joint_.IsNext(JobOf(*id)));
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
  const Job forward = JobOf(newest);
  const std::optional<JobId> next = rank.ready.NextOverlapped();
  if (forward.kind != JobKind::kForward || !next.has_value()) return std::nullopt;
  if (!rank.in_flight.IsRunning(newest) && Needs(run_.graph(), JobOf(*next), forward)) return std::nullopt;
  *waits =
      rank.in_flight.has_overlapped() || rank.in_flight.CountComputing(/*overlapped=*/true) >= launch_ahead_;
  return *waits ? std::nullopt : rank.ready.TakeOverlapped();
}

StartEffect WorkerRun::MakeStart(LocalRank& rank, JobId id, WorkerEffects* out) {
  const Graph& graph = run_.graph();
  const Job job = JobOf(id);
  StartEffect start{rank.rank, job, {}, {}};
  graph.Operations(job, &start.operations);
  if (graph.IsJoint(job)) start.part = joint_.Start(job);
  start.version = graph.VersionOf(job);
  AddInputs(id, &start);
  if (HasMicrobatch(job.kind) && start.part == JointPart::kBegin) return start;
  if (job.kind == JobKind::kForward || start.Does(Operation::kRemakeForward)) rank.activations.Begin();
  versions_.Started(rank.rank, job, out);
  start.has_state = graph.route() != nullptr;
  start.keeps_version =
      job.kind == JobKind::kUpdate && start.last && versions_.KeepsVersion(job, start.version);
  start.takes_snapshot = start.last && snapshots_.IsTakenBehind(job);
  start.takes_copy = start.last && copies_.IsTakenBehind(job);
  if (start.takes_copy) copies_.Expect(job, out);
  return start;
}

// Adds the tensors that the job reads in this start, and whether it is its last.
void WorkerRun::AddInputs(JobId id, StartEffect* start) {
  GradientIntake::Range gradients;
  if (intake_.IsConsumer(start->job)) {
    gradients = intake_.Take(id);
    start->last = MissingOf(id) == 0;
  }
  if (start->part != JointPart::kNone) start->last = start->part == JointPart::kEnd;
  if (HasMicrobatch(start->job.kind) && start->part == JointPart::kBegin) return;
  std::vector<Edge> edges;
  run_.graph().Predecessors(start->job, &edges);
  for (const Edge& e : edges) {
    if (e.tensor == TensorKind::kOrder || e.joined) continue;
    if (e.tensor == TensorKind::kGradient) {
      const bool now = e.from.microbatch >= gradients.first && e.from.microbatch < gradients.end;
      if (now) start->gradients.push_back(run_.KeyOf(e));
    } else if (start->last) {
      start->inputs.push_back(run_.KeyOf(e));
    }
  }
}

void WorkerRun::OnJobLaunched(int64_t now, Rank number, const Job& job, bool last,
                              std::optional<int64_t> activation_bytes, WorkerEffects* out) {
  LocalRank& rank = RankOf(number);
  const JobId id = run_.IdOf(job);
  rank.in_flight.Launch(id);
  rank.clock.Launched();
  Touch(rank);
  if (failed_) return UpdateIdle(now);
  if (!last) return NextRound(now, id, out);
  if (HandOn(now, rank, job, activation_bytes, Outputs::kAtLaunch, out)) StartJobs(now, out);
}

void WorkerRun::OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out) {
  LocalRank& rank = RankOf(done.rank);
  const JobId id = run_.IdOf(done.job);
  bool overlapped = false;
  const RankClock::Given given = rank.in_flight.End(id, done.launched, &overlapped);
  --running_;
  Touch(rank);
  rank.clock.Job(now, done.start_ns, done.end_ns, done.job.kind, overlapped, !rank.in_flight.empty(),
                 done.launched ? given : RankClock::Given());
  if (aborted_ && running_ == 0) {
    out->push_back(ForgetEffect{});
    return;
  }
  if (failed_) return UpdateIdle(now);
  if (!done.last) {
    if (!done.launched) return NextRound(now, id, out);
    return StartJobs(now, out);
  }
  --rank.jobs_remaining;
  wants_.Ended(now, rank.rank, done.job, out);
  if (done.launched) {
    PublishOutputs(done.job, Outputs::kWhenDone, out, done.end_ns);
  } else if (!HandOn(now, rank, done.job, done.activation_bytes, Outputs::kAll, out)) {
    return;
  }
  Completion completion{done.job, done.start_ns, done.end_ns, done.loss.value_or(0), done.loss.has_value()};
  if (run_.graph().TotalsNorm(done.job)) completion.gradient_norm = done.gradient_norm;
  completion.hashes = done.hashes;
  out->push_back(SendEffect{Completions{run_.assignment().run, rank.rank, rank.token, {completion}}});
  progress_.End(StepOf(id));
  LeaveEndedSteps(out);
  StartJobs(now, out);
}

// Begins the next round of a job that takes gradients as they arrive and waits for more; or notes that a
// joint operation has begun.
void WorkerRun::NextRound(int64_t now, JobId id, WorkerEffects* out) {
  FlagsOf(id) &= static_cast<uint8_t>(~kQueued);
  if (run_.graph().IsJoint(JobOf(id))) {
    const std::optional<Job> next = joint_.NoteBegun(JobOf(id));
    if (next.has_value() && (FlagsOf(run_.IdOf(*next)) & kClaimed)) Consider(run_.IdOf(*next));
  }
  Consider(id);
  StartJobs(now, out);
}

bool WorkerRun::HandOn(int64_t now, LocalRank& rank, const Job& job, std::optional<int64_t> activation_bytes,
                       Outputs outputs, WorkerEffects* out) {
  const JobId id = run_.IdOf(job);
  FlagsOf(id) |= kDone;
  intake_.Forget(id);
  joint_.Forget(job);
  const std::string failure = rank.activations.End(job, activation_bytes);
  if (!failure.empty()) {
    OnFailure(now, {run_.assignment().run, failure}, out);
    return false;
  }
  PublishOutputs(job, outputs, out);
  const bool snapshot = snapshots_.IsTakenBehind(job);
  versions_.Ended(rank.rank, job, snapshot + copies_.IsTakenBehind(job), out);
  if (snapshot) snapshots_.NoteTaken(job);
  while (!rank.claimed.empty() && (FlagsOf(rank.claimed.front()) & kDone)) rank.claimed.pop_front();
  return true;
}

// Publishes the outputs. An order edge to another rank brings no tensor whose bytes could be waited for: it
// is handed on when the job is done.
void WorkerRun::PublishOutputs(const Job& job, Outputs outputs, WorkerEffects* out, int64_t made) {
  std::vector<Edge> edges;
  progress_.edges().AppendSuccessors(run_.graph(), job, &edges);
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
    out->push_back(PublishEffect{run_.ProcessOf(consumer), run_.KeyOf(e), parts});
    return;
  }
  if (e.tensor != TensorKind::kOrder) out->push_back(PublishEffect{-1, run_.KeyOf(e), parts});
  if (run_.graph().BeginsJointly(e)) joint_.InputArrived(e.to);
  InputArrived(run_.IdOf(e.to), e.from.microbatch, out);
}

void WorkerRun::NoteMade(const Job& consumer, int64_t made) {
  const Rank rank = run_.graph().RankOf(consumer);
  if (run_.IsLocal(rank)) RankOf(rank).in_flight.NoteMade(run_.IdOf(consumer), made);
}

void WorkerRun::LeaveEndedSteps(WorkerEffects* out) {
  while (progress_.FirstHasEnded()) {
    // Claimed lists of other ranks no longer name jobs of this step: all of them ended.
    for (const auto& r : ranks_) {
      while (!r->claimed.empty() && StepOf(r->claimed.front()) == progress_.first_step()) {
        r->claimed.pop_front();
        Touch(*r);
      }
    }
    copies_.StepEnded(progress_.first_step(), out);
    progress_.LeaveFirst();
    KeepVersionsForCopies();
  }
}

// No update of a step behind these has begun, so nothing that they need has been dropped.
void WorkerRun::KeepVersionsForCopies() {
  const int end = progress_.first_step() + run_.StepsAtOnce() + run_.graph().schedule().MaxStaleness() + 1;
  for (int& step = versions_kept_for_; step <= end; ++step) {
    if (copies_.AreMade(step)) versions_.AddSnapshot(step);
  }
}

int WorkerRun::AnnounceSnapshot(int step) {
  if (step - 1 < progress_.first_step() || step >= run_.steps() || snapshots_.IsAnnounced(step)) return -1;
  int pieces = 0;
  for (int i = 0; i < progress_.jobs().size(); ++i) {
    const JobId id = MakeJobId(step - 1, i);
    const Job job = JobOf(id);
    if (job.kind != JobKind::kUpdate || !run_.IsLocal(progress_.jobs().RankOf(id)) ||
        !Saves(run_.graph(), job))
      continue;
    if ((FlagsOf(id) & (kQueued | kDone)) != 0) return -1;
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
  TouchAll();
  out->push_back(SendEffect{std::move(failure)});
  UpdateIdle(now);
}

void WorkerRun::Abort(WorkerEffects* out) {
  if (aborted_) return;
  failed_ = aborted_ = true;
  TouchAll();
  if (running_ == 0) out->push_back(ForgetEffect{});
}

void WorkerRun::Finish(int64_t now) {
  finishing_ = true;
  TouchAll();
  UpdateIdle(now);
}

void WorkerRun::Touch(LocalRank& rank) {
  if (!std::exchange(rank.touched, true)) touched_.push_back(run_.PlaceOf(rank.rank));
}

void WorkerRun::TouchAll() {
  for (const auto& rank : ranks_) Touch(*rank);
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
  const Job next = JobOf(id);
  if (joint_.AwaitsGather(next, progress_.At(StepOf(id)).missing[IndexOf(id)])) return IdleCause::kTransfer;
  return HasMicrobatch(next.kind) ? IdleCause::kDependency : IdleCause::kReduce;
}

void WorkerRun::UpdateIdle(int64_t now) {
  for (const int touched : touched_) {
    LocalRank& rank = *ranks_[touched];
    const IdleCause cause = CauseOf(rank);
    if (cause != rank.clock.cause()) rank.clock.Idle(now, cause);
    rank.touched = false;
  }
  touched_.clear();
}

std::vector<Rank> WorkerRun::ranks() const {
  std::vector<Rank> ranks;
  ranks.reserve(ranks_.size());
  for (const auto& rank : ranks_) ranks.push_back(rank->rank);
  return ranks;
}

const RankClock& WorkerRun::ClockAt(int64_t now, Rank number) {
  LocalRank& rank = RankOf(number);
  // Jobs in flight close their own interval, with their exact times.
  if (rank.in_flight.empty()) rank.clock.Idle(now, rank.clock.cause());
  return rank.clock;
}

}  // namespace weft
