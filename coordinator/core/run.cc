#include "coordinator/core/run.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/require.h"
#include "coordinator/core/run_beginnings.h"
#include "coordinator/core/run_restore.h"
#include "coordinator/core/seconds.h"

namespace weft {

Run::Run(const CoreOptions& options, uint64_t id, int32_t processes, int64_t now, SubmitRun& submission)
    : options_(options),
      info_(NewRunInfo(id, processes, now, submission)),
      submission_(submission),
      attempts_(plan().restarts, plan().checkpoint.keep),
      present_(submission_, attempts_, &info_),
      progress_(attempts_, present_, &info_),
      relocation_(submission_, present_, attempts_, progress_, info_),
      stop_(submission_, present_, &info_),
      failures_(options, attempts_, present_.beginnings(), &info_),
      deadlines_(options),
      finish_(present_, progress_, failures_, deadlines_, &info_),
      job_watch_(plan().job_timeout) {}

Run::Run(const CoreOptions& options, StepEffects& out, RestoreRun& restored)
    : options_(options),
      info_(std::move(restored.stored.figures.info)),
      submission_(restored),
      attempts_(submission_.has_plan() ? plan().restarts : 0,
                submission_.has_plan() ? plan().checkpoint.keep : 0),
      present_(submission_, attempts_, &info_),
      progress_(attempts_, present_, &info_, restored.stored.figures.first_start_ns),
      relocation_(submission_, present_, attempts_, progress_, info_),
      stop_(submission_, present_, &info_),
      failures_(options, attempts_, present_.beginnings(), &info_),
      deadlines_(options),
      finish_(present_, progress_, failures_, deadlines_, &info_),
      job_watch_(submission_.has_plan() ? plan().job_timeout : JobTimeout()) {
  info_.output = std::move(restored.stored.submission.folder.path);
  info_.run_id = submission_.run_id();
  if (IsFinal(info_.state)) {
    submission_.End();
    Announce(out);
  } else {
    GoOn(out, restored);
  }
}

void Run::GoOn(StepEffects& out, RestoreRun& restored) {
  const RunFigures& figures = restored.stored.figures;
  attempts_.Restore(info_, figures);
  std::vector<int> placed = info_.member_of_rank;
  const RestoredState state = TakeUp(restored, submission_, &info_);
  if (state.has_begun) present_.NoteBegun();
  AttemptRecord& attempt = restored.stored.attempt;
  // Processes that end with their coordinator do not come back.
  const bool returns = state.may_return && !options_.fixed_workers;
  if (state.ending.has_value() && !returns) return EndAsStored(*state.ending);
  if (state.has_begun) deadlines_.BeginGathering(out.now);
  RunBeginnings& beginnings = present_.beginnings();
  if (state.has_begun && !returns) beginnings.Tell(plan(), beginnings.WithCheckpoint(plan()), info_.reason);
  if (returns) {
    const std::vector<SessionId> sessions(attempt.members.size());
    if (placed.empty()) placed = placement().MemberOfRank(plan().ranks(), sessions);
    present_.AwaitReturn(std::make_unique<RunReturn>(std::move(attempt), figures, submission_.run_id(),
                                                     out.now + options_.lease_ns, state.ending),
                         placed);
  }
  Announce(out);
}

// ---- waiting

void Run::Wait(StepEffects& out, std::string reason, bool for_workers) {
  for_workers ? deadlines_.AwaitWorkers(out.now) : deadlines_.Clear();
  if (!info_.restart_reason.empty()) reason = absl::StrCat(info_.restart_reason, "; ", reason);
  reason = stop_.Explain(reason);
  if (info_.state == RunState::kWaiting && reason == info_.reason) return;
  info_.state = RunState::kWaiting;
  info_.reason = std::move(reason);
  Announce(out);
}

void Run::Start(StepEffects& out, const std::vector<Worker*>& workers, FencingNumbers* numbers) {
  const std::vector<Peer> peers = PeersOf(workers);
  if (const int64_t bytes = BytesToTell(peers); bytes > options_.peer_bytes) {
    return Fail(absl::StrCat(
        "each of its ", workers.size(), " processes would be sent the addresses of all, ", bytes >> 20,
        " MiB together; the limit is ", options_.peer_bytes >> 20, " MiB: use fewer processes"));
  }
  present_.Make(out, workers, peers, placement(), numbers);
  progress_.Assigned(out.now);
  deadlines_.EndGathering();
  deadlines_.Prepare(out.now);
  info_.state = RunState::kPreparing;
  info_.reason = stop_.reason();
  Announce(out);
}

// ---- the return of an attempt

std::string Run::TakeBack(StepEffects& out, const Worker& worker, const Reattach& m) {
  if (!returning())
    return IsFinal(info_.state) ? "the run has ended" : "the run goes on without this process";
  std::string why = present_.awaited()->Take(worker, m, &present_.members());
  if (!why.empty()) return why;
  if (present_.awaited()->complete()) {
    GoOnTogether(out);
  } else if (info_.stop_step < 0) {
    info_.reason = absl::StrCat("the coordinator was started again; ", present_.awaited()->Progress());
    Announce(out);
  }
  return "";
}

void Run::GiveUpReturn(const std::string& cause) {
  EndAsStored(present_.awaited()->otherwise().value_or(
      RunEnding{RunState::kWaiting, absl::StrCat("the coordinator was started again, and ", cause),
                RestartCause::kCoordinator}));
}

// Ends a run as what is stored of it says.
void Run::EndAsStored(const RunEnding& ending) {
  if (ending.state == RunState::kFinished) NoteUnvalidatedEnd(plan(), &info_);
  End(ending);
}

void Run::GoOnTogether(StepEffects& out) {
  const std::unique_ptr<RunReturn> back = present_.EndReturn();
  relocation_.TakeUp(back->record());
  if (!present_.GoOn(out, *back)) {
    return EndAsStored(back->otherwise().value_or(RunEnding{
        RunState::kWaiting, "the coordinator was started again, and what its processes say does not fit",
        RestartCause::kCoordinator}));
  }
  deadlines_.EndGathering();
  if (!attempt()->stops()) info_.reason.clear();
  BeginRunning(out);
  for (auto& [from, message] : back->deferred()) {
    if (ending_.has_value()) return;
    std::visit(
        [&, from = from](auto& m) {
          if constexpr (requires { Take(out, from, m); }) Take(out, from, m);
        },
        message);
  }
  if (!ending_.has_value() && info_.state == RunState::kRunning && attempt()->queue().all_done())
    EndIf(finish_.GoOn(out));
}

// ---- progress

void Run::Take(StepEffects& out, SessionId from, const Prepared&) {
  if (info_.state != RunState::kPreparing) return;
  present_.members().Find(from)->prepared = true;
  if (!members().AllAlive(&RunMember::prepared) || blaming()) return;
  attempt()->Begin(out);
  BeginRunning(out);
}

void Run::BeginRunning(StepEffects& out) {
  info_.state = RunState::kRunning;
  progress_.Running(out);
  deadlines_.Run(out.now);
  stop_.Begin();
  Announce(out);
}

void Run::Take(StepEffects& out, SessionId from, const Credit& m) {
  if (!members().Holds(from, m.rank, m.token)) {
    ++out.counts.fenced;
    return;
  }
  present_.members().SetCredit(m.rank, m.jobs);
  attempt()->MayGrant(m.rank);
}

void Run::Take(StepEffects& out, SessionId from, const GroupId& m) {
  if (info_.state == RunState::kPreparing) return attempt()->Take(out, from, m);
  ++out.counts.fenced;
}

void Run::Take(StepEffects& out, SessionId from, Completions& m) {
  if (!members().Holds(from, m.rank, m.token)) {
    ++out.counts.fenced;
    return;
  }
  const RunMember& member = members().MemberOf(m.rank);
  if (info_.state < RunState::kRunning) {
    ++out.counts.violations;
    return Fail(
        absl::StrCat(member.label, " reports jobs done before any was granted: a fault in the worker"));
  }
  if (const std::string violation = attempt()->Complete(out, &m); !violation.empty())
    return Fail(absl::StrCat(member.label, " reports ", violation, ": a fault in the worker"));
  if (m.jobs.empty()) return;
  for (const Completion& done : m.jobs) {
    failures_.Done(done.job);
    if (auto slow = job_watch_.Ended(out.now, m.rank, done, attempt()->times()))
      out.effects.slow_jobs.push_back({info_.id, absl::StrCat(*std::move(slow), " on ", member.label)});
  }
  progress_.JobsDone(out.now, m.jobs);
  deadlines_.Run(out.now);
  attempt()->MayGrant(m.rank);
  out.effects.jobs.push_back({info_.id, m.rank, member.process, std::move(m.jobs)});
  EndSteps(out);
}

void Run::EndSteps(StepEffects& out) {
  const bool first = info_.steps_done <= plan().first_step;
  if (!attempt()->EndSteps(out)) return;
  if (first) progress_.Keep(out);  // the start of the first job
  progress_.StepsDone(out, attempt()->queue().steps_done());
  if (checkpoints() != nullptr) checkpoints()->SealSaved(out);
  if (attempt()->queue().all_done()) return EndIf(finish_.GoOn(out));
  EndStopped();
}

void Run::Take(StepEffects& out, SessionId from, Report& m) {
  // The last figures of a process came with Finished; it frees its memory since then.
  RunMember& member = *present_.members().Find(from);
  if (member.finished) return;
  const std::vector<Rank> ranks = members().RanksOf(member);
  if (attempt() != nullptr) attempt()->See(out.now, ranks, m);
  progress_.Take(out, from, m.ranks);
  if (info_.state != RunState::kRunning || blaming()) return;
  const std::string hangs =
      attempt()->TakeJointOperations(ranks, m.joint_operations, plan().job_timeout.at_least_ns);
  if (!hangs.empty()) {
    out.effects.stalls.push_back({info_.id, hangs});
    return EndAttempt(hangs, RestartCause::kNoProgress);
  }
  TakeRunning(out, member, m.running);
}

// Takes the jobs that a process says it runs. A job that runs is what others wait for, and it has a deadline
// of its own: none of theirs passes meanwhile.
void Run::TakeRunning(StepEffects& out, RunMember& member, const std::vector<RunningJob>& reported) {
  const std::vector<RunningJob> running = attempt()->InHand(member, reported);
  if (!running.empty()) deadlines_.Run(out.now);
  JobWatch::Verdict verdict = job_watch_.Judge(out.now, running, attempt()->times());
  if (verdict.stuck.has_value()) {
    const std::string stuck = absl::StrCat("it is stuck: ", verdict.reason);
    if (!std::exchange(member.stuck, true))
      out.effects.stalls.push_back({info_.id, absl::StrCat(member.label, ": ", stuck)});
    if (!ending_.has_value()) End(failures_.Lose(member, stuck, "", {*verdict.stuck}));
    return;
  }
  SetStall(out, std::move(verdict.slow), &member.slow);
}

void Run::Take(StepEffects& out, SessionId from, const Failed& m) {
  RunMember& member = *present_.members().Find(from);
  member.failed = true;
  if (GoesOnWithout(out, member, absl::StrCat("failed: ", m.reason))) return;
  if (m.device_lost && !blaming())
    return EndForLoss(member, absl::StrCat("its device is lost to it: ", m.reason));
  EndIf(failures_.Report(out, member, m));
}

void Run::Take(StepEffects& out, SessionId from, Finished& m) {
  if (info_.state != RunState::kFinishing) {
    ++out.counts.violations;
    return Fail(absl::StrCat(present_.members().Find(from)->label,
                             " says it has finished before all jobs were done: a fault in the worker"));
  }
  EndIf(finish_.Take(out, from, m));
}

void Run::Take(StepEffects& out, SessionId from, Stalled& m) {
  SetStall(out, std::move(m.reason), &present_.members().Find(from)->stalled);
}

// Sets what one process waits for, and puts the stalls into the reason of a run that runs: the first few
// processes that report one.
void Run::SetStall(StepEffects& out, std::string sentence, std::string* of_member) {
  const bool begins = !sentence.empty() && members().Stalls().empty();
  *of_member = std::move(sentence);
  if (begins) out.effects.stalls.push_back({info_.id, members().Stalls()});
  if (info_.state != RunState::kRunning && info_.state != RunState::kFinishing) return;
  std::string reason = members().Stalls();
  if (attempt()->stops()) reason = absl::StrCat(attempt()->stop_reason(), reason.empty() ? "" : "; ", reason);
  if (reason == info_.reason) return;
  info_.reason = std::move(reason);
  Announce(out);
}

void Run::RestartDeadline(int64_t now) {
  info_.state == RunState::kRunning ? deadlines_.Run(now) : deadlines_.Finish(now);
}

void Run::Take(StepEffects& out, SessionId from, const SnapshotSaved& m) {
  if (!TakesSnapshots()) return;
  RestartDeadline(out.now);
  checkpoints()->Take(out, from, m);
}

void Run::Take(StepEffects& out, SessionId from, const CheckpointSealed& m) {
  if (!TakesSnapshots()) return;
  switch (checkpoints()->Take(out, from, m)) {
    case RunCheckpoints::Sealing::kFenced:
      return;
    case RunCheckpoints::Sealing::kStop:
      if (m.failure.empty()) {
        attempts_.Checkpointed(m.step);
      } else {
        attempt()->NoteStopUnsaved();
      }
      return attempt()->HasStopped(copies()) ? EndStopped() : Announce(out);
    case RunCheckpoints::Sealing::kFatal:
      return Fail(info_.checkpoint_failure);
    case RunCheckpoints::Sealing::kPassed:
      if (m.failure.empty() && m.step == info_.checkpoint_step && m.step < plan().steps)
        attempts_.Checkpointed(m.step);
      Announce(out);
      info_.state == RunState::kFinishing ? EndIf(finish_.GoOn(out)) : EndStopped();
  }
}

void Run::Take(StepEffects& out, SessionId from, Validation& m) {
  if (!TakesSnapshots()) return;
  const RunCheckpoints::Validating outcome = checkpoints()->Take(out, from, m);
  if (outcome == RunCheckpoints::Validating::kFenced) return;
  RestartDeadline(out.now);
  if (outcome == RunCheckpoints::Validating::kUnderWay) return;
  present_.beginnings().Validated(m.step);
  Announce(out);
  info_.state == RunState::kRunning ? EndStopped() : EndIf(finish_.GoOn(out));
}

void Run::Take(StepEffects& out, SessionId from, const CopiesHeld& m) {
  if (present_.Take(out, from, m)) EndStopped();
}

void Run::Lose(StepEffects& out, SessionId session, const std::string& reason, const std::string& wrote) {
  RunMember& member = *present_.members().Find(session);
  member.alive = false;
  if (returning()) return GiveUpReturn(absl::StrCat(member.label, " was lost: ", reason));
  if (!GoesOnWithout(out, member, absl::StrCat("was lost: ", reason))) EndForLoss(member, reason, wrote);
}

bool Run::GoesOnWithout(StepEffects& out, RunMember& member, const std::string& what) {
  if (!member.finished && !finish_.HasResults()) return false;
  EndIf(finish_.Without(out, member, what));
  return true;
}

void Run::EndForLoss(const RunMember& member, const std::string& reason, const std::string& wrote) {
  if (ending_.has_value()) return;
  const std::vector<Job> in_hand = attempt() == nullptr ? std::vector<Job>() : attempt()->JobsInHand(member);
  End(failures_.Lose(member, reason, wrote, in_hand));
}

void Run::EndAttempt(const std::string& reason, RestartCause cause) {
  if (!ending_.has_value()) End(failures_.EndAttempt(reason, cause));
}

// If the checkpoint with which the attempt stopped could not be saved, the run begins again with the one
// before, which suits the other schedule as well.
void Run::TakeReplan(StepEffects& out) {
  std::optional<ReplanRun> replan = relocation_.TakeReplan();
  if (!replan.has_value()) return submission_.ForgetLinks();
  submission_.Replan(*std::move(replan));
  const std::string former = std::exchange(info_.schedule, plan().schedule);
  const int32_t step = present_.beginnings().WithCheckpoint(plan()).step;
  out.effects.replanned.push_back({info_.id, step, submission_.shared_plan(), former, ending_->reason});
}

void Run::Restart(StepEffects& out) {
  info_.state = RunState::kWaiting;
  info_.restarts = attempts_.restarts();
  TakeReplan(out);
  RunBeginnings& beginnings = present_.beginnings();
  beginnings.Tell(plan(), beginnings.Next(plan(), !submission_.output().empty(), nullptr, std::nullopt),
                  ending_->reason);
  Require(ending_->cause.has_value(), "a run that begins again has a cause");
  ++out.counts.restarts[static_cast<int>(*ending_->cause)];
  ending_.reset();
  attempts_.End();
  progress_.Lost(out.now);
  DropAttempt();
  Announce(out);
}

void Run::DropAttempt() {
  deadlines_.Clear();
  failures_.Clear();
  job_watch_.EndAttempt();
  present_.Drop();
}

void Run::Grant(StepEffects& out) {
  if (info_.state < RunState::kRunning || IsFinal(info_.state)) return;
  attempt()->TellSettled(out);
  if (info_.state == RunState::kRunning && !blaming()) attempt()->Grant(out, copies().hold());
}

// ---- end

void Run::SaveAndCancel(StepEffects& out, const std::string& reason) {
  // A run that finishes ends by itself, with its last checkpoint. Nobody waits for more.
  if (info_.state == RunState::kFinishing && attempt()->CanStop() && !blaming())
    return EndIf(finish_.GoOnWithoutValidations(out));
  stop_.Order(reason) ? Announce(out) : Cancel(reason);
}

void Run::Relocate(StepEffects& out, const std::string& reason) {
  if (!blaming()) EndIf(relocation_.Relocate(out, reason));
}

absl::Status Run::Move(StepEffects& out, const std::vector<Rank>& ranks, SessionId to,
                       const std::string& reason) {
  absl::StatusOr<std::optional<RunEnding>> moved = relocation_.Move(out, ranks, to, reason);
  if (!moved.ok()) return moved.status();
  EndIf(*std::move(moved));
  return absl::OkStatus();
}

void Run::End(RunEnding ending) {
  if (!ending_.has_value()) ending_ = std::move(ending);
}

void Run::Close(StepEffects& out) {
  out.counts.jobs_quarantined += ending_->quarantined ? 1 : 0;
  info_.state = ending_->state;
  info_.reason = stop_.Conclude(ending_->state, std::move(ending_->reason));
  ending_.reset();
  info_.ended_ns = out.now;
  info_.reports = attempts_.Reports();
  std::vector<std::string> members = std::move(info_.members);
  std::vector<int32_t> member_of_rank = std::move(info_.member_of_rank);
  DropAttempt();
  info_.members = std::move(members);
  info_.member_of_rank = std::move(member_of_rank);
  submission_.End();
  Announce(out);
}

// ---- time

int64_t Run::next_due() const {
  int64_t next = std::min(failures_.first().due, deadlines_.next_due());
  if (returning()) next = std::min(next, present_.awaited()->until());
  if (info_.state == RunState::kRunning && checkpoints() != nullptr && !blaming())
    next = std::min(next, checkpoints()->next_due());
  return next;
}

void Run::CheckDeadline(StepEffects& out) {
  if (returning() && out.now >= present_.awaited()->until()) {
    return GiveUpReturn(absl::StrCat(members().Missing(&RunMember::alive), " did not come back within ",
                                     Seconds(options_.lease_ns)));
  }
  if (!deadlines_.Pass(out.now)) return;
  const std::string reason = deadlines_.Describe(out.now, info_, members(), attempt());
  if (info_.state > RunState::kWaiting) out.effects.stalls.push_back({info_.id, reason});
  // No job runs, for an unknown reason: something was lost that another attempt makes anew.
  info_.state == RunState::kRunning ? EndAttempt(reason, RestartCause::kNoProgress) : Fail(reason);
}

}  // namespace weft
