#include "coordinator/core/run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reduction.h"
#include "coordinator/core/seconds.h"
#include "coordinator/core/submission_hash.h"

namespace weft {
namespace {

RunInfo InfoOf(uint64_t id, int32_t processes, int64_t now, const SubmitRun& submission) {
  RunInfo info;
  info.id = id;
  info.name = submission.plan->name;
  info.schedule = submission.plan->schedule;
  info.ranks = submission.plan->ranks();
  info.processes = processes;
  info.steps = submission.plan->steps;
  info.submitted_ns = now;
  info.output = submission.folder.path.empty() ? submission.output : submission.folder.path;
  info.file = submission.file;
  return info;
}

}  // namespace

Run::Run(const CoreOptions& options, uint64_t id, int32_t processes, int64_t now, SubmitRun& submission)
    : options_(options),
      info_(InfoOf(id, processes, now, submission)),
      request_(submission.request),
      body_hash_(BodyHash(submission.spec, submission.processes, submission.output)),
      plan_(std::move(submission.plan)),
      spec_(std::move(submission.spec)),
      run_id_(std::move(submission.run_id)),
      attempts_(plan_->restarts, plan_->checkpoint.keep),
      beginnings_(attempts_, copies_, &info_) {
  output_ = submission.folder.path.empty() ? submission.output : submission.folder.live;
}

Run::Run(const CoreOptions& options, StepEffects& out, RestoreRun& restored)
    : options_(options),
      info_(std::move(restored.stored.figures.info)),
      request_(std::move(restored.stored.submission.request)),
      body_hash_(BodyHash(restored.stored.submission.spec, restored.stored.submission.processes,
                          restored.stored.submission.output)),
      plan_(std::move(restored.plan)),
      spec_(std::move(restored.stored.submission.spec)),
      output_(std::move(restored.stored.submission.folder.live)),
      run_id_(std::move(restored.stored.submission.run_id)),
      attempts_(plan_ == nullptr ? 0 : plan_->restarts, plan_ == nullptr ? 0 : plan_->checkpoint.keep),
      beginnings_(attempts_, copies_, &info_),
      first_start_ns_(restored.stored.figures.first_start_ns) {
  info_.output = std::move(restored.stored.submission.folder.path);
  if (!IsFinal(info_.state)) {
    TakeUp(out, restored);
  } else {
    std::string().swap(spec_);
    Announce(out);
  }
}

void Run::TakeUp(StepEffects& out, const RestoreRun& restored) {
  if (!restored.stored.steps.empty()) {
    const StepDone& last = restored.stored.steps.back();
    info_.steps_done = last.step + 1;
    info_.loss = last.loss;
    info_.has_loss = last.has_loss;
  }
  RunFigures figures = restored.stored.figures;
  figures.info = info_;
  attempts_.Restore(figures);
  info_.reports.clear();
  info_.members.clear();
  has_begun_ = info_.state >= RunState::kPreparing || info_.started_ns != 0 || info_.restarts > 0;
  const bool finishes = info_.state == RunState::kFinishing;
  info_.state = RunState::kWaiting;
  if (plan_ == nullptr) return Fail(restored.failure);
  if (info_.stop_step >= 0) {
    return Cancel(absl::StrCat(info_.reason,
                               "; the coordinator was started again before the checkpoint of step ",
                               info_.stop_step, " was complete"));
  }
  const bool saved = output_.empty() ? finishes : info_.checkpoint_step >= plan_->steps;
  if (info_.steps_done >= plan_->steps && saved) return TakeUpResults();
  info_.reason = "the coordinator was started again";
  if (has_begun_) {
    gather_until_ = out.now + options_.gathering_ns;
    beginnings_.Tell(*plan_, beginnings_.WithCheckpoint(*plan_), info_.reason);
  }
  Announce(out);
}

// Finishes a run whose steps and checkpoint are complete: the processes' last figures are lost.
void Run::TakeUpResults() {
  const bool validated = info_.validation.has_value() && info_.validation->step >= plan_->steps;
  if (plan_->checkpoint.validate_every > 0 && !validated) {
    info_.validation_failure = absl::StrCat("the weights after step ", plan_->steps,
                                            " were not validated: the coordinator was started again");
    ++info_.failed_validations;
  }
  End(RunState::kFinished, "");
}

RunFigures Run::Figures() const {
  return {InfoWithReports(), attempts_.losses().losses(), attempts_.losses().furthest(), first_start_ns_};
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
  if (!for_workers) {
    deadline_ = kNever;
  } else if (deadline_ == kNever) {
    deadline_ = out.now + options_.waiting_ns;
  }
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
  std::set<SessionId> sessions;
  for (const Worker* w : workers) {
    members_.Add({w->session, w->process, w->Label()});
    info_.members.push_back(w->Label());
    sessions.insert(w->session);
  }
  gather_until_ = kNever;
  Reduction choice = ChooseReduction(*plan_, workers);
  beginnings_.Begin(beginnings_.Next(*plan_, !output_.empty(), &sessions, choice.mode));
  const int32_t step = beginnings_.present().step;
  if (has_begun_ && step != info_.restart_step) beginnings_.Tell(*plan_, beginnings_.present());
  const bool resumes = step != plan_->first_step;
  std::shared_ptr<const RunPlan> plan = resumes ? PlanFrom(*plan_, step) : plan_;
  const std::string checkpoint =
      beginnings_.present().copies.has_value() ? "" : absl::StrCat(output_, "/checkpoint-", step);
  const std::string spec = resumes ? plan_->resumed_spec(checkpoint, step) : spec_;
  info_.reduction = std::move(choice.sentence);
  if (choice.mode == ReductionMode::kFast) plan = plan->fast;
  attempts_.Assigned(out.now, plan->ranks());
  recovery_.Assigned(out.now);
  members_.Lease(plan->ranks(), numbers);
  out.effects.records.epoch = std::max(out.effects.records.epoch, members_.epoch());
  attempt_ = std::make_unique<RunAttempt>(std::move(plan), choice.mode, members_, &info_, !output_.empty());
  if (plan_->redundancy > 0 && members_.size() > 1)
    copies_.Begin(attempt_->plan().graph, attempt_->reduction(), members_.epoch(), step);
  info_.state = RunState::kPreparing;
  info_.reason.clear();
  deadline_ = out.now + options_.preparing_ns;
  for (int m = 0; m < members_.size(); ++m) out.Send(members_.at(m).session, AssignFor(m, peers, spec));
  Announce(out);
}

Assign Run::AssignFor(int member, const std::vector<Peer>& peers, const std::string& spec) const {
  Assign assign;
  assign.run = info_.id;
  assign.epoch = members_.epoch();
  assign.spec = spec;
  assign.output = output_;
  assign.leases = members_.LeasesOf(member);
  assign.process_of_rank = members_.ProcessOfRank();
  assign.peers = peers;
  assign.reduction_mode = attempt_->reduction();
  assign.reduction = info_.reduction;
  assign.run_id = run_id_;
  assign.copies = copies_.under_way();
  if (const auto& copies = beginnings_.present().copies; copies.has_value()) {
    assign.copies_epoch = copies->epoch;
    for (const auto& [part, session] : copies->keepers)
      assign.kept.push_back({part, members_.at(members_.NumberOf(session)).process});
  }
  assign.examined_step = info_.non_finite_step;
  return assign;
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
  deadline_ = out.now + options_.progress_ns;
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
    suspects_.Done(done.job);
    first_start_ns_ = std::min(first_start_ns_, done.start_ns);
  }
  recovery_.JobDone(out.now);
  deadline_ = out.now + options_.progress_ns;
  attempt_->MayGrant(m.rank);
  out.effects.jobs.push_back({info_.id, m.rank, member.process, std::move(m.jobs)});
  EndSteps(out);
}

void Run::EndSteps(StepEffects& out) {
  const bool first = info_.steps_done <= plan_->first_step;
  if (!attempt_->EndSteps(out)) return;
  if (first) out.Keep(Figures());  // the start of the first job
  if (attempt_->queue().steps_done() > info_.steps_done) NoteNewSteps(out, attempt_->queue().steps_done());
  if (checkpoints() != nullptr) checkpoints()->SealSaved(out);
  if (attempt_->queue().all_done()) return BeginFinishing(out);
  if (checkpoints() != nullptr && checkpoints()->stop_sealed()) EndStopped(out);
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
  if (members_.Find(from)->finished) return;
  TakeReports(out, from, m.ranks);
}

void Run::Take(StepEffects& out, SessionId from, const Failed& m) {
  if (blaming()) return;
  std::string failed = absl::StrCat(members_.Find(from)->label, " failed: ", m.reason);
  const bool began_there = m.damaged_checkpoint == attempt_->plan().first_step;
  if (began_there && beginnings_.present().copies.has_value() && stop_reason_.empty()) {
    copies_.Forget(m.damaged_checkpoint);
    return EndToRelocate(failed);
  }
  if (began_there && stop_reason_.empty() && attempts_.FallBack(m.damaged_checkpoint)) {
    info_.checkpoint_step = attempts_.checkpoint_step();
    return End(RunState::kWaiting, failed);
  }
  if (m.non_finite_step >= 0) {
    ++info_.non_finite_steps;
    ++out.counts.non_finite_steps;
    if (MakesOnceMore(m.non_finite_step))
      return EndToRelocate(
          absl::StrCat(failed, "; no stage keeps the step's update, and it is made once more"));
    absl::StrAppend(&failed, info_.non_finite_step == m.non_finite_step ? "; the step was made twice" : "");
  }
  failure_ = {std::move(failed), from, m.link_to >= 0, out.now + options_.blame_ns};
}

// Returns true if a step whose numbers are not finite is made again, and notes that. Each step is, once; and
// none before one that was.
bool Run::MakesOnceMore(int32_t step) {
  if (attempts_.allowed() == 0 || !stop_reason_.empty() || step <= info_.non_finite_step) return false;
  info_.non_finite_step = step;
  return true;
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
  if (members_.AllFinished()) End(RunState::kFinished, "");
}

// Puts the stalls into the reason of a run that runs: the first few processes that report one.
void Run::Take(StepEffects& out, SessionId from, Stalled& m) {
  members_.Find(from)->stalled = std::move(m.reason);
  if (info_.state != RunState::kRunning && info_.state != RunState::kFinishing) return;
  std::string reason = members_.Stalls();
  if (!stop_reason_.empty())
    reason = reason.empty() ? stop_reason_ : absl::StrCat(stop_reason_, "; ", reason);
  if (reason == info_.reason) return;
  info_.reason = std::move(reason);
  Announce(out);
}

void Run::RestartDeadline(int64_t now) {
  deadline_ = now + (info_.state == RunState::kRunning ? options_.progress_ns : options_.finishing_ns);
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
        absl::StrAppend(&stop_reason_, "; ", info_.checkpoint_failure);
      }
      return EndStopped(out);
    case RunCheckpoints::Sealing::kFatal:
      return Fail(info_.checkpoint_failure);
    case RunCheckpoints::Sealing::kPassed:
      if (m.failure.empty() && m.step == info_.checkpoint_step && m.step < plan_->steps)
        attempts_.Checkpointed(m.step);
      Announce(out);
      if (info_.state == RunState::kFinishing) BeginFinishing(out);
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
  if (relocates_ && checkpoints()->stop_sealed()) EndStopped(out);
}

void Run::Take(StepEffects& out, SessionId from, const CopiesHeld& m) {
  if (attempt_ == nullptr || !copies_.Take(from, m)) {
    ++out.counts.fenced;
    return;
  }
  const std::optional<int32_t> complete = copies_.TakeComplete();
  if (!complete.has_value()) return;
  for (const RunMember& member : members_.all()) {
    if (member.alive) out.Send(member.session, DropCopies{info_.id, members_.epoch(), *complete});
  }
  attempt_->MayGrantAll();
}

void Run::Lose(StepEffects& out, SessionId session, const std::string& reason, const std::string& wrote) {
  RunMember& member = *members_.Find(session);
  member.alive = false;
  if (member.finished) return;  // it has done its part
  if (HasResults()) return FinishWithout(out, member, reason);
  EndForLoss(member, reason, wrote);
}

void Run::EndForLoss(const RunMember& member, const std::string& reason, const std::string& wrote) {
  const std::string lost = failure_.ExplainedBy(member, reason);
  if (ending_.has_value() || attempt_ == nullptr) return EndAttempt(lost);
  suspects_.Lost({member.label, reason, wrote}, attempt_->JobsInHand(member));
  attempts_.allowed() > 0 && suspects_.Poisoned(options_.poison_losses) ? Fail(suspects_.Describe())
                                                                        : EndAttempt(lost);
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
  if (members_.AllFinished()) End(RunState::kFinished, "");
}

void Run::EndAttempt(const std::string& reason) {
  if (ending_.has_value()) return;
  const bool stops = !stop_reason_.empty() && !relocates_;
  if (stops || attempts_.allowed() == 0) return Fail(reason);
  if (attempts_.MayRestart(info_.steps_done)) return End(RunState::kWaiting, reason);
  const int32_t times = attempts_.allowed();
  Fail(absl::StrCat(reason, "; before, the run began again ", times, times == 1 ? " time" : " times",
                    " in a row, without a new step between (restarts: ", times, " in the run file)"));
}

void Run::Restart(StepEffects& out) {
  info_.state = RunState::kWaiting;
  info_.restarts = attempts_.restarts();
  beginnings_.Tell(*plan_, beginnings_.Next(*plan_, !output_.empty(), nullptr, std::nullopt),
                   ending_->reason);
  ending_.reset();
  attempts_.End();
  recovery_.Lost(out.now);
  DropAttempt();
  relocates_ = false;
  stop_reason_.clear();
  ++out.counts.restarts;
  Announce(out);
}

void Run::DropAttempt() {
  has_begun_ = true;
  deadline_ = kNever;
  failure_ = {};
  copies_.End();
  attempt_.reset();
  info_.members.clear();
  members_.Clear();
}

void Run::Grant(StepEffects& out) {
  if (info_.state == RunState::kRunning && !blaming()) attempt_->Grant(out, copies_.hold());
}

// ---- end

bool Run::HasSteps() const { return info_.state >= RunState::kRunning && attempt_->HasSteps(); }

void Run::SaveAndCancel(StepEffects& out, const std::string& reason) {
  if (!HasSteps() || checkpoints() == nullptr || blaming()) return Cancel(reason);
  if (info_.state != RunState::kRunning) {
    // It ends by itself, with its last checkpoint. Nobody waits for more.
    checkpoints()->GiveUpValidations("the run was told to stop");
    return BeginFinishing(out);
  }
  relocates_ = false;
  StopBehindCheckpoint(out, reason);
}

void Run::Relocate(StepEffects& out, const std::string& reason) {
  const bool stops = !stop_reason_.empty();
  if (info_.state <= RunState::kWaiting || info_.state == RunState::kFinishing || stops || blaming()) return;
  if (!HasSteps() || checkpoints() == nullptr) return EndToRelocate(reason);
  relocates_ = true;
  StopBehindCheckpoint(out, reason);
}

bool Run::MayExpand(int64_t now) const {
  return members_.size() < info_.processes && info_.state == RunState::kRunning && checkpoints() != nullptr &&
         HasSteps() && stop_reason_.empty() && !blaming() &&
         now - attempt_->running_since_ns() >= info_.restarts * options_.expand_ns;
}

void Run::EndToRelocate(const std::string& reason) {
  attempts_.Relocated();
  End(RunState::kWaiting, reason);
}

void Run::StopBehindCheckpoint(StepEffects& out, const std::string& reason) {
  const int32_t step = checkpoints()->Stop(attempt_->queue().granted_end());
  if (!relocates_) info_.stop_step = step;
  info_.reason = stop_reason_ = reason;
  Announce(out);
}

// Ends a stopped run, once also the jobs of its steps that the checkpoint did not need have ended, so that
// each of its steps is reported.
void Run::EndStopped(StepEffects& out) {
  if (attempt_->queue().steps_done() < checkpoints()->stop_step()) return Announce(out);
  if (!relocates_) return Cancel(stop_reason_);
  // The next attempt would not make them.
  if (!checkpoints()->validating()) EndToRelocate(stop_reason_);
}

// Finishes a run whose jobs are all done: first the checkpoint, then the end.
void Run::BeginFinishing(StepEffects& out) {
  if (info_.state != RunState::kFinishing) {
    info_.state = RunState::kFinishing;
    if (checkpoints() != nullptr) checkpoints()->Announce(out, plan_->steps);
    Announce(out);
  }
  deadline_ = out.now + options_.finishing_ns;
  if (checkpoints() != nullptr && (checkpoints()->saving() || checkpoints()->validating())) return;
  for (const RunMember& m : members_.all()) out.Send(m.session, Finish{info_.id});
}

void Run::End(RunState state, const std::string& reason) {
  if (!ending_.has_value()) ending_ = Ending{state, reason};
}

void Run::Close(StepEffects& out) {
  info_.state = ending_->state;
  info_.reason = std::move(ending_->reason);
  ending_.reset();
  info_.ended_ns = out.now;
  info_.reports = attempts_.Reports();
  std::vector<std::string> members = std::move(info_.members);
  DropAttempt();
  info_.members = std::move(members);
  plan_.reset();
  std::string().swap(spec_);
  Announce(out);
}

// ---- time

int64_t Run::next_due() const {
  int64_t next = std::min({failure_.due, deadline_, gather_until_});
  if (info_.state == RunState::kRunning && checkpoints() != nullptr && !blaming())
    next = std::min(next, checkpoints()->next_due());
  return next;
}

void Run::CheckDeadline(int64_t now) {
  if (now >= gather_until_) gather_until_ = kNever;
  if (now < deadline_) return;
  switch (info_.state) {
    case RunState::kSubmitted:
    case RunState::kWaiting:
      return Fail(
          absl::StrCat("waited ", Seconds(options_.waiting_ns), " for worker processes: ", info_.reason));
    case RunState::kPreparing:
      return Fail(absl::StrCat("not prepared after ", Seconds(options_.preparing_ns), ": ",
                               members_.Missing(&RunMember::prepared)));
    case RunState::kRunning:
      return Fail(absl::StrCat("no job ended for ", Seconds(options_.progress_ns),
                               "; awaited: ", attempt_->DescribeAwaited()));
    case RunState::kFinishing:
      return Fail(DescribeFinishing());
    default:
      return;
  }
}

std::string Run::DescribeFinishing() const {
  const std::string time = Seconds(options_.finishing_ns);
  const std::string awaited = checkpoints() == nullptr ? "" : checkpoints()->DescribeLate(time);
  if (!awaited.empty()) return awaited;
  return absl::StrCat("not finished ", time, " after the last job: ", members_.Missing(&RunMember::finished));
}

}  // namespace weft
