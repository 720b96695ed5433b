#include "worker/core/worker_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/core/worker_run.h"

namespace weft {

WorkerCore::WorkerCore(ParseSpec parse, int launch_ahead)
    : parse_(std::move(parse)), launch_ahead_(launch_ahead) {}
WorkerCore::~WorkerCore() = default;

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
  // Jobs in flight close their own interval, with their exact times.
  if (state.in_flight.empty()) state.clock.Idle(now, state.clock.cause());
  return state.clock;
}

std::vector<IdleSpan> WorkerCore::idle_spans(Rank rank) const {
  const auto& spans = run_->StateOf(rank).clock.spans();
  return {spans.begin(), spans.end()};
}

std::vector<TransferSpan> WorkerCore::transfer_spans(Rank rank) const {
  const auto& spans = run_->StateOf(rank).transfers;
  return {spans.begin(), spans.end()};
}

int WorkerCore::peak_activations(Rank rank) const { return run_->StateOf(rank).peak_activations; }

int WorkerCore::peak_weight_versions(Rank rank) const { return run_->StateOf(rank).peak_weight_versions; }

int WorkerCore::weight_versions(Rank rank) const {
  const Run& run = *run_;
  int most = 0;
  if (run.graph.route() != nullptr) {
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

void WorkerCore::OnMessage(int64_t now, const FromCoordinator& message, WorkerEffects* out) {
  if (const auto* assign = std::get_if<Assign>(&message)) return OnAssign(now, *assign, out);
  if (const auto* grant = std::get_if<Grant>(&message)) return OnGrant(now, *grant, out);
  if (const auto* id = std::get_if<GroupId>(&message)) return OnIdOfGroup(*id, out);
  if (const auto* shutdown = std::get_if<Shutdown>(&message)) {
    out->push_back(ExitEffect{shutdown->reason});
    return;
  }
  if (const auto* finish = std::get_if<Finish>(&message)) {
    if (!run_ || finish->run != run_->assignment.run || run_->finishing || run_->failed) return;
    run_->finishing = true;
    run_->TouchAll();
    UpdateIdle(now);
    out->push_back(FinishEffect{});
    return;
  }
  if (const auto* take = std::get_if<TakeSnapshot>(&message)) return OnTakeSnapshot(*take, out);
  if (const auto* seal = std::get_if<SealCheckpoint>(&message)) {
    if (run_ && seal->run == run_->assignment.run && !run_->failed)
      out->push_back(SealEffect{seal->step, seal->keep, seal->drop, seal->validate, seal->passing});
    return;
  }
  if (const auto* validate = std::get_if<Validate>(&message)) {
    if (run_ && validate->run == run_->assignment.run && !run_->failed)
      out->push_back(ValidateEffect{validate->step});
    return;
  }
  if (const auto* abort = std::get_if<Abort>(&message)) {
    if (next_.has_value() && next_->run == abort->run) {
      next_.reset();
      next_ids_.clear();
    }
    if (!run_ || abort->run != run_->assignment.run) {
      out->push_back(SendEffect{Forgotten{abort->run}});
      return;
    }
    if (run_->aborted) return;
    run_->failed = run_->aborted = true;
    run_->TouchAll();
    if (run_->running == 0) out->push_back(ForgetEffect{abort->reason});
  }
}

void WorkerCore::OnGrant(int64_t now, const Grant& grant, WorkerEffects* out) {
  if (!run_ || grant.run != run_->assignment.run || grant.rank < 0 ||
      grant.rank >= static_cast<Rank>(run_->state_of_rank.size()) || !run_->IsLocal(grant.rank) ||
      run_->StateOf(grant.rank).token != grant.token) {
    ++stale_grants_;
    return;
  }
  if (run_->failed) return;
  run_->now = now;
  RankState& rank = run_->StateOf(grant.rank);
  rank.granted = true;
  run_->Touch(rank);
  for (const Job& job : grant.jobs) Claim(rank, job, out);
  StartJobs(now, out);
}

void WorkerCore::Claim(RankState& rank, const Job& job, WorkerEffects* out) {
  Run& run = *run_;
  if (job.step < run.progress.first_step() || job.step >= run.steps)
    return;  // it ended before this grant came
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

// Gives a claimed job to its rank's ready jobs if it can start now.
void WorkerCore::Consider(int64_t id) {
  Run& run = *run_;
  run.Touch(run.StateOf(run.RankAt(id)));
  uint8_t& flags = run.FlagsOf(id);
  if (flags & (kQueued | kDone)) return;
  const Job job = run.JobOf(id);
  bool can_start = run.MissingOf(id) == 0;
  if (run.graph.IsJoint(job)) {
    const Run::Joining& joining = run.JoiningOf(id);
    if (!joining.begun) can_start = joining.left == 0;
  } else if (!can_start && run.ConsumesGradients(job)) {
    const Run::Intake& intake = run.IntakeOf(id);
    can_start = intake.next < static_cast<int>(intake.arrived.size()) && intake.arrived[intake.next];
  }
  if (!can_start) return;
  flags |= kQueued;
  // A gather goes before everything: others wait for it, and it needs the place of the job that has just
  // ended, not that of the next.
  const bool gathers = run.graph.GathersWeights(job) && run.JointOperationIsNext(id);
  const bool admits = job.kind == JobKind::kForward && !gathers;
  run.StateOf(run.RankAt(id))
      .ready.Add(gathers ? INT64_MIN : run.graph.PriorityOf(job), id, job.stage, admits,
                 admits ? run.admission.TicketOf(job) : -1, (run.graph.MarksOf(job) & kBesideForward) != 0);
}

void WorkerCore::StartJobs(int64_t now, WorkerEffects* out) {
  Run& run = *run_;
  if (!run.failed && run.prepared) {
    std::sort(run.touched.begin(), run.touched.end());
    for (const int touched : run.touched) {
      while (std::optional<StartEffect> start = TakeJob(now, *run.ranks[touched])) {
        Drop(out);
        out->push_back(*std::move(start));
      }
    }
  }
  UpdateIdle(now);
}

// Returns the job that the rank can start, if there is one: at once, or beside the forward that it computes
// alone.
std::optional<StartEffect> WorkerCore::TakeJob(int64_t now, RankState& rank) {
  bool waits = false;
  std::optional<int64_t> id = TakeBeside(rank, &waits);
  const bool beside = id.has_value();
  if (!beside && !waits && rank.idle()) {
    // A job that begins a collective gives the device no work to be ahead with.
    const std::optional<int64_t> next = rank.ready.Next();
    const bool begins = next.has_value() && run_->JointOperationIsNext(*next);
    if (begins || rank.CountInFlight(/*beside=*/false) < launch_ahead_) id = rank.ready.Take();
  }
  if (!id.has_value()) return std::nullopt;
  if (rank.idle()) rank.clock.Idle(now, IdleCause::kDispatch);
  (beside ? rank.beside : rank.running) = *id;
  rank.in_flight.push_back({*id, beside, false, run_->JointOperationIsNext(*id), {now, 0}});
  ++run_->running;
  StartEffect start = MakeStart(rank, *id);
  start.beside = beside;
  return start;
}

StartEffect WorkerCore::MakeStart(RankState& rank, int64_t id) {
  Run& run = *run_;
  const Job job = run.JobOf(id);
  StartEffect start{rank.rank, job, {}, {}};
  run.graph.Operations(job, &start.operations);
  std::vector<Edge> edges;
  run.graph.Predecessors(job, &edges);
  const bool consumes = run.ConsumesGradients(job);
  Run::Intake* intake = consumes ? &run.IntakeOf(id) : nullptr;
  const int first = consumes ? intake->next : 0;
  if (consumes) {
    while (intake->next < static_cast<int>(intake->arrived.size()) && intake->arrived[intake->next])
      ++intake->next;
    start.last = run.MissingOf(id) == 0;
  }
  if (run.graph.IsJoint(job)) {
    Run::Joining& joining = run.JoiningOf(id);
    start.part = joining.begun ? JointPart::kEnd : JointPart::kBegin;
    start.last = std::exchange(joining.begun, true);
  }
  start.version = run.graph.VersionOf(job);
  if (HasMicrobatch(job.kind) && start.part == JointPart::kBegin) return start;
  for (const Edge& e : edges) {
    if (e.tensor == TensorKind::kOrder || e.joined) continue;
    if (e.tensor == TensorKind::kGradient) {
      if (e.from.microbatch >= first && e.from.microbatch < intake->next) start.gradients.push_back(KeyOf(e));
    } else if (start.last) {
      start.inputs.push_back(KeyOf(e));
    }
  }
  if (job.kind == JobKind::kForward || start.Does(Operation::kRemakeForward))
    rank.peak_activations = std::max(rank.peak_activations, ++rank.activations);
  if (job.kind == JobKind::kUpdate && run.graph.sync(job.stage).passes_sums()) {
    // What came to it says that every backward of the step has ended. StartJobs drops what that leaves
    // unread.
    for (int b = 0; b < run.graph.schedule().microbatches; ++b)
      run.versions->ReadElsewhere(job.step, job.stage, b, job.member, &run.dropped);
  }
  start.has_state = run.graph.route() != nullptr;
  if (start.has_state) rank.visiting_versions[job.stage] = run.graph.route()->VersionsDuring(job);
  start.keeps_version = job.kind == JobKind::kUpdate && start.last &&
                        (start.has_state ? run.graph.route()->IsReadAfter(job, start.version)
                                         : run.versions->KeepsVersion(job));
  start.takes_snapshot = start.last && run.TakesSnapshot(job);
  return start;
}

void WorkerCore::OnJobLaunched(int64_t now, Rank number, const Job& job, bool last,
                               std::optional<int64_t> left_bytes, WorkerEffects* out) {
  Require(run_ != nullptr, "a job is launched before its run is forgotten");
  Run& run = *run_;
  RankState& rank = run.StateOf(number);
  const int64_t id = run.IdOf(job);
  rank.Launch(id);
  rank.clock.Launched();
  run.Touch(rank);
  if (run.failed) return UpdateIdle(now);
  if (!last) return NextRound(now, id, out);
  if (HandOn(now, rank, job, left_bytes, Outputs::kAtLaunch, out)) StartJobs(now, out);
}

void WorkerCore::OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out) {
  Require(run_ != nullptr, "a job ends before its run is forgotten");
  Run& run = *run_;
  run.now = now;
  RankState& rank = run.StateOf(done.rank);
  const int64_t id = run.IdOf(done.job);
  bool overlapped = false;
  const RankClock::Given given = rank.End(id, done.launched, &overlapped);
  --run.running;
  run.Touch(rank);
  rank.clock.Job(now, done.start_ns, done.end_ns, done.job.kind, overlapped, !rank.in_flight.empty(),
                 done.launched ? given : RankClock::Given());
  if (run.aborted && run.running == 0) {
    out->push_back(ForgetEffect{"the run was aborted"});
    return;
  }
  if (run.failed) return UpdateIdle(now);
  if (!done.last) {
    if (!done.launched) return NextRound(now, id, out);
    return StartJobs(now, out);
  }
  --rank.jobs_left;
  if (run.FetchesInTurn(done.job)) {
    --rank.fetching;
    WantWeights(rank, out);
  }
  if (done.launched) {
    PublishOutputs(done.job, Outputs::kWhenDone, out, done.end_ns);
  } else if (!HandOn(now, rank, done.job, done.left_bytes, Outputs::kAll, out)) {
    return;
  }
  Completion completion{done.job, done.start_ns, done.end_ns, done.loss.value_or(0), done.loss.has_value()};
  if (run.graph.TotalsNorm(done.job)) completion.gradient_norm = done.gradient_norm;
  out->push_back(SendEffect{Completions{run.assignment.run, rank.rank, rank.token, {completion}}});
  run.progress.End(StepOf(id));
  PopRows();
  StartJobs(now, out);
}

// Begins the next round of a job that takes gradients as they arrive and waits for more; or notes that a
// collective has begun.
void WorkerCore::NextRound(int64_t now, int64_t id, WorkerEffects* out) {
  run_->FlagsOf(id) &= static_cast<uint8_t>(~kQueued);
  if (run_->graph.IsJoint(run_->JobOf(id))) JointOperationBegun(run_->JobOf(id));
  Consider(id);
  StartJobs(now, out);
}

// Hands on what the rank and the waiting jobs may go on with. Returns false if the run has failed in it.
bool WorkerCore::HandOn(int64_t now, RankState& rank, const Job& job, std::optional<int64_t> left_bytes,
                        Outputs outputs, WorkerEffects* out) {
  Run& run = *run_;
  const int64_t id = run.IdOf(job);
  run.FlagsOf(id) |= kDone;
  run.intakes.erase(id);
  run.joining.erase(id);
  FreeActivation(rank, job);
  MeasureActivation(now, rank, job, left_bytes, out);
  if (run.failed) return false;
  PublishOutputs(job, outputs, out);
  CountVersions(rank, job, out);
  while (!rank.claimed.empty() && (run.FlagsOf(rank.claimed.front()) & kDone)) rank.claimed.pop_front();
  return true;
}

void WorkerCore::PopRows() {
  Run& run = *run_;
  while (run.progress.FirstHasEnded()) {
    // Claimed lists of other ranks no longer name jobs of this step: all of them ended.
    for (const auto& r : run.ranks) {
      while (!r->claimed.empty() && StepOf(r->claimed.front()) == run.progress.first_step()) {
        r->claimed.pop_front();
        run.Touch(*r);
      }
    }
    run.progress.LeaveFirst();
  }
}

// Measures an activation. Every micro-batch has the same sizes, so the first forward of a stage measures for
// all.
void WorkerCore::MeasureActivation(int64_t now, RankState& rank, const Job& forward,
                                   std::optional<int64_t> left_bytes, WorkerEffects* out) {
  if (forward.kind != JobKind::kForward || !left_bytes.has_value() || !rank.ready.tickets().has_value() ||
      rank.measured[forward.stage]) {
    return;
  }
  const int64_t counted = rank.ready.tickets()->left(forward.stage);
  if (*left_bytes > counted) {
    return OnFailure(
        now,
        absl::StrFormat(
            "%s on rank %d left %d bytes of activations, more than the %d that the memory budget was "
            "planned with; run it without `memory`",
            Describe(forward), rank.rank, *left_bytes, counted),
        out);
  }
  rank.measured[forward.stage] = true;
  // The bytes between the halves of a backward have been counted too, and are not in the measure.
  if (run_->graph.schedule().split_backward) return;
  rank.ready.Measure(forward.stage, *left_bytes);
}

// Frees a micro-batch's activation on its stage, with its backward, or, where that is on another rank, with
// each.
void WorkerCore::FreeActivation(RankState& rank, const Job& job) {
  if (!HasMicrobatch(job.kind)) return;
  const bool leaves_nothing = job.kind == JobKind::kForward && run_->graph.IsApart(job);
  if (job.kind != run_->graph.final_backward() && !leaves_nothing) return;
  --rank.activations;
  if (leaves_nothing || !run_->graph.IsApart(job)) rank.ready.Release(job.stage);
}

IdleCause WorkerCore::CauseOf(const RankState& rank) const {
  Run& run = *run_;
  if (!run.prepared || !rank.granted || run.finishing || run.failed || rank.jobs_left == 0)
    return IdleCause::kNoWork;
  if (!rank.idle()) return IdleCause::kDispatch;
  // The device has done the next job's inputs, if it computes nothing, and that is not known yet.
  if (!rank.in_flight.empty() && rank.ready.Next().has_value()) return IdleCause::kDispatch;
  if (const auto held = rank.ready.HeldBackBy(); held.has_value()) return *held;
  if (rank.claimed.empty()) return IdleCause::kDispatch;
  const Job next = run.JobOf(rank.claimed.front());
  if (run.AwaitsGather(rank.claimed.front())) return IdleCause::kTransfer;
  return HasMicrobatch(next.kind) ? IdleCause::kDependency : IdleCause::kReduce;
}

void WorkerCore::UpdateIdle(int64_t now) {
  for (const int touched : run_->touched) {
    RankState& rank = *run_->ranks[touched];
    const IdleCause cause = CauseOf(rank);
    if (cause != rank.clock.cause()) rank.clock.Idle(now, cause);
    rank.touched = false;
  }
  run_->touched.clear();
}

void WorkerCore::OnFinished(std::vector<RankReport> reports, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  out->push_back(SendEffect{Finished{run_->assignment.run, std::move(reports)}});
  run_->finishing = run_->failed = true;
  out->push_back(ForgetEffect{""});
}

void WorkerCore::Forget(int64_t now, WorkerEffects* out) {
  if (run_) out->push_back(SendEffect{Forgotten{run_->assignment.run}});
  run_.reset();
  if (!next_.has_value()) return;
  const Assign assign = *std::exchange(next_, std::nullopt);
  OnAssign(now, assign, out);
  for (const GroupId& id : std::exchange(next_ids_, {})) OnIdOfGroup(id, out);
}

void WorkerCore::OnFailure(int64_t now, const std::string& reason, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  run_->failed = true;
  run_->TouchAll();
  out->push_back(SendEffect{Failed{run_->assignment.run, reason}});
  UpdateIdle(now);
}

}  // namespace weft
