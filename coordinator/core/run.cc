#include "coordinator/core/run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reduction.h"
#include "coordinator/core/run_restore.h"
#include "coordinator/core/seconds.h"

namespace weft {

Run::Run(const CoreOptions& options, uint64_t id, int32_t processes, int64_t now, SubmitRun& submission)
    : options_(options),
      info_(NewRunInfo(id, processes, now, submission)),
      submission_(submission),
      attempts_(plan().restarts, plan().checkpoint.keep),
      beginnings_(attempts_, copies_, &info_),
      failures_(options, attempts_, beginnings_, &info_),
      deadlines_(options),
      job_watch_(plan().job_timeout) {}

Run::Run(const CoreOptions& options, StepEffects& out, RestoreRun& restored)
    : options_(options),
      info_(std::move(restored.stored.figures.info)),
      submission_(restored),
      attempts_(submission_.has_plan() ? plan().restarts : 0,
                submission_.has_plan() ? plan().checkpoint.keep : 0),
      beginnings_(attempts_, copies_, &info_),
      failures_(options, attempts_, beginnings_, &info_),
      deadlines_(options),
      job_watch_(submission_.has_plan() ? plan().job_timeout : JobTimeout()),
      first_start_ns_(restored.stored.figures.first_start_ns) {
  info_.output = std::move(restored.stored.submission.folder.path);
  if (IsFinal(info_.state)) {
    submission_.End();
    Announce(out);
  } else {
    GoOn(out, restored);
  }
}

void Run::GoOn(StepEffects& out, RestoreRun& restored) {
  const RunFigures& figures = restored.stored.figures;
  attempts_.Restore({info_, figures.losses, figures.furthest, first_start_ns_});
  const std::vector<int> placed = info_.member_of_rank;
  const RestoredState state = TakeUp(restored, submission_, &info_);
  has_begun_ = state.has_begun;
  AttemptRecord& attempt = restored.stored.attempt;
  // Processes that end with their coordinator do not come back.
  const bool returns =
      state.may_return && !options_.fixed_workers && figures.epoch != 0 && figures.epoch == attempt.epoch;
  if (state.ending.has_value() && !returns) return EndAsStored(*state.ending);
  if (has_begun_) deadlines_.BeginGathering(out.now);
  if (has_begun_ && !returns) beginnings_.Tell(plan(), beginnings_.WithCheckpoint(plan()), info_.reason);
  if (returns) {
    const std::vector<SessionId> sessions(attempt.members.size());
    members_.Restore(attempt, placed.empty() ? placement_.MemberOfRank(plan().ranks(), sessions) : placed);
    attempts_.TakeUp(attempt);
    return_ = std::make_unique<RunReturn>(std::move(attempt), figures, submission_.run_id(),
                                          out.now + options_.lease_ns, state.ending);
  }
  Announce(out);
}

RunFigures Run::Figures() const {
  RunFigures figures{InfoWithReports(), attempts_.losses().losses(), attempts_.losses().furthest(),
                     first_start_ns_};
  if (attempt_ != nullptr || return_ != nullptr) figures.epoch = members_.epoch();
  if (return_ != nullptr) {
    figures.sealed = return_->asked().sealed;
    figures.validated = return_->asked().validated;
  } else if (checkpoints() != nullptr) {
    figures.sealed = checkpoints()->sealed();
    figures.validated = checkpoints()->validated();
  }
  return figures;
}

void Run::Announce(StepEffects& out) const {
  out.Changed(info_);
  out.Keep(Figures());
}

RunInfo Run::InfoWithReports() const {
  RunInfo info = info_;
  if (info.reports.empty()) info.reports = attempts_.Reports();
  return info;
}

// ---- waiting

void Run::Wait(StepEffects& out, std::string reason, bool for_workers) {
  for_workers ? deadlines_.AwaitWorkers(out.now) : deadlines_.Clear();
  if (!info_.restart_reason.empty()) reason = absl::StrCat(info_.restart_reason, "; ", reason);
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
  std::vector<SessionId> sessions;
  for (const Worker* w : workers) {
    members_.Add({w->session, w->process, w->Label()});
    info_.members.push_back(w->Label());
    sessions.push_back(w->session);
  }
  const std::set<SessionId> keepers(sessions.begin(), sessions.end());
  deadlines_.EndGathering();
  Reduction choice = ChooseReduction(plan(), workers);
  const bool saves = !submission_.output().empty();
  beginnings_.Begin(beginnings_.Next(plan(), saves, &keepers, choice.mode));
  const int32_t step = beginnings_.present().step;
  if (has_begun_ && step != info_.restart_step) beginnings_.Tell(plan(), beginnings_.present());
  std::shared_ptr<const RunPlan> its_plan = submission_.PlanFrom(step, choice.mode);
  info_.reduction = std::move(choice.sentence);
  attempts_.Assigned(out.now, its_plan->ranks());
  recovery_.Assigned(out.now);
  members_.Lease(placement_.MemberOfRank(its_plan->ranks(), sessions), numbers);
  info_.member_of_rank = members_.MemberOfRank();
  out.effects.records.epoch = std::max(out.effects.records.epoch, members_.epoch());
  out.effects.records.attempts.push_back(Record(workers, choice.mode));
  const bool makes_copies = its_plan->redundancy > 0 && members_.size() > 1;
  attempt_ = std::make_unique<RunAttempt>(std::move(its_plan), choice.mode, members_, &info_, saves);
  if (makes_copies) copies_.Begin(attempt_->plan().graph, attempt_->reduction(), members_.epoch(), step);
  info_.state = RunState::kPreparing;
  info_.reason.clear();
  deadlines_.Prepare(out.now);
  attempt_->AssignTo(out, peers, submission_, beginnings_.present(), makes_copies);
  Announce(out);
}

AttemptRecord Run::Record(const std::vector<Worker*>& workers, ReductionMode reduction) const {
  AttemptRecord record;
  record.run = info_.id;
  record.epoch = members_.epoch();
  record.first_token = members_.first_token();
  record.first_step = beginnings_.present().step;
  record.reduction = reduction;
  record.from_copies = beginnings_.present().copies.has_value();
  for (const Worker* w : workers) record.members.push_back({w->process, w->hello.worker, w->Label()});
  record.former = attempts_.Former();
  return record;
}

// ---- the return of an attempt

std::string Run::TakeBack(StepEffects& out, const Worker& worker, const Reattach& m) {
  if (!returning())
    return IsFinal(info_.state) ? "the run has ended" : "the run goes on without this process";
  std::string why = return_->Take(worker, m, &members_);
  if (!why.empty()) return why;
  if (return_->complete()) {
    GoOnTogether(out);
  } else if (info_.stop_step < 0) {
    info_.reason = absl::StrCat("the coordinator was started again; ", return_->Progress());
    Announce(out);
  }
  return "";
}

void Run::GiveUpReturn(const std::string& cause) {
  EndAsStored(return_->otherwise().value_or(
      RunEnding{RunState::kWaiting, absl::StrCat("the coordinator was started again, and ", cause)}));
}

// Ends a run as what is stored of it says.
void Run::EndAsStored(const RunEnding& ending) {
  if (ending.state == RunState::kFinished) NoteUnvalidatedEnd(plan(), &info_);
  End(ending);
}

void Run::GoOnTogether(StepEffects& out) {
  const std::unique_ptr<RunReturn> back = std::move(return_);
  const AttemptRecord& record = back->record();
  RunBeginnings::Beginning beginning{record.first_step, std::nullopt};
  if (record.from_copies) beginning.copies = RunCopies::Beginning{record.first_step, 0, record.reduction, {}};
  beginnings_.Begin(std::move(beginning));
  attempt_ = std::make_unique<RunAttempt>(submission_.PlanFrom(record.first_step, record.reduction),
                                          record.reduction, members_, &info_, !submission_.output().empty(),
                                          back.get());
  for (const Reattach::HeldRank& held : back->ranks()) members_.SetCredit(held.rank, held.credit);
  if (!attempt_->GoOn(out, *back)) {
    return EndAsStored(back->otherwise().value_or(RunEnding{
        RunState::kWaiting, "the coordinator was started again, and what its processes say does not fit"}));
  }
  if (attempt_->plan().redundancy > 0 && members_.size() > 1)
    copies_.Begin(attempt_->plan().graph, record.reduction, members_.epoch(), record.first_step);
  for (const RunMember& m : members_.all()) info_.members.push_back(m.label);
  info_.member_of_rank = members_.MemberOfRank();
  deadlines_.EndGathering();
  info_.state = RunState::kRunning;
  if (!attempt_->stops()) info_.reason.clear();
  if (info_.started_ns == 0) info_.started_ns = out.now;
  deadlines_.Run(out.now);
  Announce(out);
  for (auto& [from, message] : back->deferred()) {
    if (ending_.has_value()) return;
    std::visit(
        [&, from = from](auto& m) {
          if constexpr (requires { Take(out, from, m); }) Take(out, from, m);
        },
        message);
  }
  if (!ending_.has_value() && info_.state == RunState::kRunning && attempt_->queue().all_done())
    BeginFinishing(out);
}

bool Run::TakeCopies(SessionId from, const CopiesHeld& m) {
  if (!submission_.has_plan() || plan().redundancy == 0 || m.run_id != submission_.run_id()) return false;
  const auto its_plan = submission_.PlanFrom(plan().first_step, m.reduction);
  const bool may_be =
      m.step > plan().first_step && m.step < plan().steps && m.step <= info_.steps_done + kMaxUnsettledSteps;
  if (its_plan == nullptr || !may_be) return false;
  copies_.TakeAgain(its_plan->graph, from, m);
  return true;
}

// ---- progress

void Run::Take(StepEffects& out, SessionId from, const Prepared&) {
  if (info_.state != RunState::kPreparing) return;
  members_.Find(from)->prepared = true;
  if (members_.AllAlive(&RunMember::prepared) && !blaming()) BeginRunning(out);
}

void Run::BeginRunning(StepEffects& out) {
  info_.state = RunState::kRunning;
  recovery_.Running(out.now);
  if (info_.started_ns == 0) info_.started_ns = out.now;
  deadlines_.Run(out.now);
  attempt_->Begin(out);
  Announce(out);
}

void Run::Take(StepEffects& out, SessionId from, const Credit& m) {
  if (!members_.Holds(from, m.rank, m.token)) {
    ++out.counts.fenced;
    return;
  }
  members_.SetCredit(m.rank, m.jobs);
  attempt_->MayGrant(m.rank);
}

void Run::Take(StepEffects& out, SessionId from, const GroupId& m) {
  if (info_.state == RunState::kPreparing) return attempt_->Take(out, from, m);
  ++out.counts.fenced;
}

void Run::Take(StepEffects& out, SessionId from, Completions& m) {
  if (!members_.Holds(from, m.rank, m.token)) {
    ++out.counts.fenced;
    return;
  }
  const RunMember& member = members_.MemberOf(m.rank);
  if (info_.state < RunState::kRunning) {
    ++out.counts.violations;
    return Fail(
        absl::StrCat(member.label, " reports jobs done before any was granted: a fault in the worker"));
  }
  if (const std::string violation = attempt_->Complete(out, &m); !violation.empty())
    return Fail(absl::StrCat(member.label, " reports ", violation, ": a fault in the worker"));
  if (m.jobs.empty()) return;
  for (const Completion& done : m.jobs) {
    failures_.Done(done.job);
    if (auto slow = job_watch_.Ended(out.now, m.rank, done, attempt_->times()))
      out.effects.slow_jobs.push_back({info_.id, absl::StrCat(*std::move(slow), " on ", member.label)});
    first_start_ns_ = std::min(first_start_ns_, done.start_ns);
  }
  recovery_.JobDone(out.now);
  deadlines_.Run(out.now);
  attempt_->MayGrant(m.rank);
  out.effects.jobs.push_back({info_.id, m.rank, member.process, std::move(m.jobs)});
  EndSteps(out);
}

void Run::EndSteps(StepEffects& out) {
  const bool first = info_.steps_done <= plan().first_step;
  if (!attempt_->EndSteps(out)) return;
  if (first) out.Keep(Figures());  // the start of the first job
  if (attempt_->queue().steps_done() > info_.steps_done) NoteNewSteps(out, attempt_->queue().steps_done());
  if (checkpoints() != nullptr) checkpoints()->SealSaved(out);
  if (attempt_->queue().all_done()) return BeginFinishing(out);
  EndStopped();
}

void Run::NoteNewSteps(StepEffects& out, int32_t steps_done) {
  info_.steps_done = steps_done;
  const std::optional<RecoveryTimes> recovery = recovery_.NewStep(out.now);
  if (!recovery.has_value()) return;
  info_.recovery_ns = recovery;
  for (int phase = 0; phase < kRecoveryPhases; ++phase) out.counts.recovery_ns[phase] += (*recovery)[phase];
  Announce(out);
}

// Adds the figures of former attempts, hands the reports on, and keeps those of the process's own ranks.
void Run::TakeReports(StepEffects& out, SessionId from, std::vector<RankReport>& reports) {
  for (RankReport& r : reports) attempts_.AddFormer(&r);
  out.effects.reports.push_back({info_.id, reports});
  for (RankReport& r : reports) {
    if (members_.Has(from, r.rank)) attempts_.Keep(std::move(r));
  }
}

void Run::Take(StepEffects& out, SessionId from, Report& m) {
  // The last figures of a process came with Finished; it frees its memory since then.
  RunMember& member = *members_.Find(from);
  if (member.finished) return;
  TakeReports(out, from, m.ranks);
  if (info_.state == RunState::kRunning && !blaming()) TakeRunning(out, member, m.running);
}

// Takes the jobs that a process says it runs. A job that runs is what others wait for, and it has a deadline
// of its own: none of theirs passes meanwhile.
void Run::TakeRunning(StepEffects& out, RunMember& member, const std::vector<RunningJob>& reported) {
  const std::vector<RunningJob> running = attempt_->InHand(member, reported);
  if (!running.empty()) deadlines_.Run(out.now);
  JobWatch::Verdict verdict = job_watch_.Judge(out.now, running, attempt_->times());
  if (verdict.stuck.has_value()) {
    member.stuck = true;
    if (!ending_.has_value())
      End(failures_.Lose(member, absl::StrCat("it is stuck: ", verdict.reason), "", {*verdict.stuck},
                         ends()));
    return;
  }
  member.slow = std::move(verdict.slow);
  TellStalls(out);
}

void Run::Take(StepEffects& out, SessionId from, const Failed& m) {
  const RunMember& member = *members_.Find(from);
  if (m.device_lost && !blaming())
    return EndForLoss(member, absl::StrCat("its device is lost to it: ", m.reason));
  if (auto ending = failures_.Report(out, member, m, ends())) End(*std::move(ending));
}

void Run::Take(StepEffects& out, SessionId from, Finished& m) {
  RunMember& member = *members_.Find(from);
  if (info_.state != RunState::kFinishing) {
    ++out.counts.violations;
    return Fail(
        absl::StrCat(member.label, " says it has finished before all jobs were done: a fault in the worker"));
  }
  TakeReports(out, from, m.ranks);
  member.finished = true;
  if (members_.AllFinished()) End({RunState::kFinished, ""});
}

void Run::Take(StepEffects& out, SessionId from, Stalled& m) {
  members_.Find(from)->stalled = std::move(m.reason);
  TellStalls(out);
}

// Puts the stalls into the reason of a run that runs: the first few processes that report one.
void Run::TellStalls(StepEffects& out) {
  if (info_.state != RunState::kRunning && info_.state != RunState::kFinishing) return;
  std::string reason = members_.Stalls();
  if (attempt_->stops()) reason = absl::StrCat(attempt_->stop_reason(), reason.empty() ? "" : "; ", reason);
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
        attempt_->NoteStopUnsaved();
      }
      return attempt_->HasStopped(copies_) ? EndStopped() : Announce(out);
    case RunCheckpoints::Sealing::kFatal:
      return Fail(info_.checkpoint_failure);
    case RunCheckpoints::Sealing::kPassed:
      if (m.failure.empty() && m.step == info_.checkpoint_step && m.step < plan().steps)
        attempts_.Checkpointed(m.step);
      Announce(out);
      info_.state == RunState::kFinishing ? BeginFinishing(out) : EndStopped();
  }
}

void Run::Take(StepEffects& out, SessionId from, Validation& m) {
  if (!TakesSnapshots()) return;
  const RunCheckpoints::Validating outcome = checkpoints()->Take(out, from, m);
  if (outcome == RunCheckpoints::Validating::kFenced) return;
  RestartDeadline(out.now);
  if (outcome == RunCheckpoints::Validating::kUnderWay) return;
  beginnings_.Validated(m.step);
  Announce(out);
  if (info_.state != RunState::kRunning) return BeginFinishing(out);
  EndStopped();
}

void Run::Take(StepEffects& out, SessionId from, const CopiesHeld& m) {
  if (attempt_ == nullptr || !copies_.Take(from, m)) {
    ++out.counts.fenced;
    return;
  }
  DropOldCopies(out);
}

// Lets all who keep copies drop those that a newer complete step replaces.
void Run::DropOldCopies(StepEffects& out) {
  const std::optional<int32_t> complete = copies_.TakeComplete();
  if (!complete.has_value()) return;
  for (const SessionId keeper : copies_.keepers_then())
    out.Send(keeper, DropCopies{info_.id, members_.epoch(), *complete});
  attempt_->MayGrantAll();
  EndStopped();
}

void Run::Lose(StepEffects& out, SessionId session, const std::string& reason, const std::string& wrote) {
  RunMember& member = *members_.Find(session);
  member.alive = false;
  if (returning()) return GiveUpReturn(absl::StrCat(member.label, " was lost: ", reason));
  if (member.finished) return;  // it has done its part
  if (HasResults()) return FinishWithout(out, member, reason);
  EndForLoss(member, reason, wrote);
}

void Run::EndForLoss(const RunMember& member, const std::string& reason, const std::string& wrote) {
  if (ending_.has_value()) return;
  const std::vector<Job> in_hand = attempt_ == nullptr ? std::vector<Job>() : attempt_->JobsInHand(member);
  End(failures_.Lose(member, reason, wrote, in_hand, ends()));
}

// Returns true if all steps are made and their checkpoint, if there is to be one, is complete.
bool Run::HasResults() const {
  return info_.state == RunState::kFinishing && (checkpoints() == nullptr || !checkpoints()->saving());
}

// Finishes without the last figures of a process, and without its validations.
void Run::FinishWithout(StepEffects& out, RunMember& member, const std::string& reason) {
  member.finished = true;
  if (checkpoints() != nullptr && checkpoints()->validating()) {
    if (&member == &members_.at(0))
      checkpoints()->GiveUpValidations(absl::StrCat(member.label, " was lost: ", reason));
    BeginFinishing(out);
  }
  Announce(out);
  if (members_.AllFinished()) End({RunState::kFinished, ""});
}

void Run::EndAttempt(const std::string& reason) {
  if (!ending_.has_value()) End(failures_.EndAttempt(reason, ends()));
}

void Run::Restart(StepEffects& out) {
  info_.state = RunState::kWaiting;
  info_.restarts = attempts_.restarts();
  beginnings_.Tell(plan(), beginnings_.Next(plan(), !submission_.output().empty(), nullptr, std::nullopt),
                   ending_->reason);
  ending_.reset();
  attempts_.End();
  recovery_.Lost(out.now);
  out.counts.restarts += returning() ? 0 : 1;
  DropAttempt();
  Announce(out);
}

void Run::DropAttempt() {
  has_begun_ = true;
  deadlines_.Clear();
  failures_.Clear();
  job_watch_.EndAttempt();
  copies_.End();
  attempt_.reset();
  return_.reset();
  info_.members.clear();
  info_.member_of_rank.clear();
  members_.Clear();
}

void Run::Grant(StepEffects& out) {
  if (info_.state < RunState::kRunning || IsFinal(info_.state)) return;
  attempt_->TellSettled(out);
  if (info_.state == RunState::kRunning && !blaming()) attempt_->Grant(out, copies_.hold());
}

// ---- end

void Run::SaveAndCancel(StepEffects& out, const std::string& reason) {
  if (attempt_ == nullptr || !attempt_->CanStop() || blaming()) return Cancel(reason);
  if (info_.state != RunState::kRunning) {
    // It ends by itself, with its last checkpoint. Nobody waits for more.
    checkpoints()->GiveUpValidations("the run was told to stop");
    return BeginFinishing(out);
  }
  attempt_->Stop(reason, /*relocates=*/false);
  Announce(out);
}

void Run::Relocate(StepEffects& out, const std::string& reason) {
  const bool has_work = info_.state == RunState::kPreparing || info_.state == RunState::kRunning;
  if (!has_work || attempt_->ends() || blaming()) return;
  // Copies leave with the processes that keep them: a checkpoint is safer.
  const bool saves = attempt_->CanStop();
  if (attempt_->stops() && !(saves && attempt_->stops_behind_copies())) return;
  StopToRelocate(out, saves ? std::nullopt : StepOfCopies(), reason);
}

// Stops the attempt behind copies of the step, else behind a checkpoint, so that the run goes on elsewhere.
void Run::StopToRelocate(StepEffects& out, std::optional<int32_t> step, const std::string& reason) {
  if (step.has_value() && *step >= plan().steps) return;  // it ends by itself
  if (!step.has_value() && !attempt_->CanStop()) return EndToRelocate(reason);
  step.has_value() ? attempt_->StopBehindCopies(reason, *step) : attempt_->Stop(reason, /*relocates=*/true);
  Announce(out);
}

absl::Status Run::Move(StepEffects& out, const std::vector<Rank>& ranks, SessionId to,
                       const std::string& reason) {
  RunPlacement ordered;
  if (!ordered.Order(members_, ranks, to)) return absl::OkStatus();
  if (!attempt_->HasSteps() && !CanBeginThere(beginnings_.present(), copies_, ordered.processes()))
    return absl::AbortedError("the processes there keep no copies of the run's state yet; try again");
  // What two processes keep for each other would leave with them.
  const std::optional<int32_t> step = ordered.Leaving(members_) > 1 ? std::nullopt : StepOfCopies();
  if (attempt_->HasSteps() && !attempt_->CanStop() && !step.has_value()) return WouldLoseWork(info_);
  placement_ = std::move(ordered);
  StopToRelocate(out, step, reason);
  return absl::OkStatus();
}

bool Run::MayExpand(int64_t now) const {
  return members_.size() < info_.processes && !placement_.ordered() && info_.state == RunState::kRunning &&
         attempt_->CanStop() && !attempt_->stops() && !blaming() &&
         now - attempt_->running_since_ns() >= info_.restarts * options_.expand_ns;
}

void Run::EndToRelocate(const std::string& reason) {
  attempts_.Relocated();
  End({RunState::kWaiting, reason});
}

// Ends a run that was told to stop, once its attempt has.
void Run::EndStopped() {
  if (!attempt_->HasStopped(copies_)) return;
  if (!attempt_->relocates()) return Cancel(attempt_->stop_reason());
  // The next attempt would not make the validations.
  if (checkpoints() == nullptr || !checkpoints()->validating()) EndToRelocate(attempt_->stop_reason());
}

// Finishes a run whose jobs are all done: first the checkpoint, then the end.
void Run::BeginFinishing(StepEffects& out) {
  if (info_.state != RunState::kFinishing) {
    info_.state = RunState::kFinishing;
    if (checkpoints() != nullptr) checkpoints()->AnnounceEnd(out);
    Announce(out);
  }
  deadlines_.Finish(out.now);
  if (checkpoints() != nullptr && (checkpoints()->saving() || checkpoints()->validating())) return;
  for (const RunMember& m : members_.all()) out.Send(m.session, Finish{info_.id});
}

void Run::End(RunEnding ending) {
  if (!ending_.has_value()) ending_ = std::move(ending);
}

void Run::Close(StepEffects& out) {
  info_.state = ending_->state;
  info_.reason = std::move(ending_->reason);
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
  if (returning()) next = std::min(next, return_->until());
  if (info_.state == RunState::kRunning && checkpoints() != nullptr && !blaming())
    next = std::min(next, checkpoints()->next_due());
  return next;
}

void Run::CheckDeadline(int64_t now) {
  if (returning() && now >= return_->until()) {
    return GiveUpReturn(absl::StrCat(members_.Missing(&RunMember::alive), " did not come back within ",
                                     Seconds(options_.lease_ns)));
  }
  if (!deadlines_.Pass(now)) return;
  const std::string reason = deadlines_.Describe(now, info_, members_, attempt_.get());
  // Nothing runs, and nobody knows why: something was lost that another attempt makes anew.
  info_.state == RunState::kRunning ? EndAttempt(reason) : Fail(reason);
}

}  // namespace weft
