// Leads one run through its phases: waiting, preparing, running, finishing. run_info.h has the states.
//
// It takes the messages of its processes and the passing of time, and answers with grants, with snapshots,
// and in the end with its wish to end: `ending` says in which state and why. The core then frees the workers
// and closes the run, because workers outlive runs (coordinator_core.h). A run that lost a process wishes to
// begin again instead: it waits for processes, and goes on from its newest checkpoint or from copies that its
// processes keep (run_beginnings.h). A run whose coordinator was started again goes on with its attempt, if
// all of its processes come back to it (run_return.h); else it begins again.
//
// Each part of this that has a state of its own is a machine of its own, which this class steps: what was
// submitted (run_submission.h), the present attempt with its members and copies (present_attempt.h), all
// attempts (run_attempts.h), what is told and stored of the run (run_progress.h), the way to other processes
// (run_relocation.h), the end that was ordered (run_stop.h), what failures call for (run_failures.h),
// deadlines (run_deadlines.h), the end behind the last job (run_finish.h), and the jobs (job_watch.h).
//
// Invariants:
//   1. A message of a rank with a token other than its present one changes nothing but a counter.
//   2. Every state before the end has a deadline, and passing it is a failure that names what was awaited.
//      While jobs run, theirs are the only ones.
//   3. While a failure waits for its cause the run grants nothing.
//   4. A run that wishes to end takes nothing more: its owner closes it before the next message.
//
// Closed, it keeps its RunInfo and what tells a repeated submission. Refers to the options, which outlive it;
// not movable. Pure; one thread. Memory: a window of steps (work_queue.h).
#ifndef WEFT_COORDINATOR_CORE_RUN_H_
#define WEFT_COORDINATOR_CORE_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core_options.h"
#include "coordinator/core/job_watch.h"
#include "coordinator/core/present_attempt.h"
#include "coordinator/core/run_attempt.h"
#include "coordinator/core/run_attempts.h"
#include "coordinator/core/run_copies.h"
#include "coordinator/core/run_deadlines.h"
#include "coordinator/core/run_failures.h"
#include "coordinator/core/run_finish.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/run_placement.h"
#include "coordinator/core/run_progress.h"
#include "coordinator/core/run_relocation.h"
#include "coordinator/core/run_return.h"
#include "coordinator/core/run_stop.h"
#include "coordinator/core/run_submission.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/work_queue.h"
#include "coordinator/core/worker_table.h"

namespace weft {

class Run {
 public:
  // Takes plan, specification and names out of the submission. `processes`: how many it runs on.
  Run(const CoreOptions& options, uint64_t id, int32_t processes, int64_t now, SubmitRun& submission);
  // Takes up a run as it was stored: it goes on from its newest checkpoint, or wishes to end.
  Run(const CoreOptions& options, StepEffects& out, RestoreRun& restored);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunInfo& info() const { return info_; }
  // Returns true if a process can serve both runs at a time (RunPlan::process_settings); false once one of
  // them has ended, of which a process may have something left.
  bool SharesProcessesWith(const Run& other) const {
    return submission_.has_plan() && other.submission_.has_plan() &&
           plan().process_settings == other.plan().process_settings;
  }
  // Returns the info with the ranks' reports so far.
  RunInfo InfoWithReports() const { return progress_.InfoWithReports(); }
  uint64_t id() const { return info_.id; }
  RunState state() const { return info_.state; }
  const RunSubmission& submission() const { return submission_; }
  const RunMembers& members() const { return present_.members(); }
  const RunCopies& copies() const { return present_.copies(); }
  // Counts the jobs and checkpoints of the attempt.
  void Count(int64_t now, Probe* probe) const {
    if (attempt() != nullptr) attempt()->Count(now, probe);
  }
  const WorkQueue* queue() const { return attempt() == nullptr ? nullptr : &attempt()->queue(); }
  const PresentAttempt& present() const { return present_; }
  // Reports the run's state, and has it stored.
  void Announce(StepEffects& out) const { progress_.Announce(out); }

  // ---- waiting

  // Says why the run waits. It has a deadline while it waits for workers to connect, not for its turn.
  void Wait(StepEffects& out, std::string reason, bool for_workers);
  // Returns true while it leaves the workers of its former coordinator time to come back.
  bool gathering() const { return deadlines_.gathering(); }
  // Returns true while it awaits the processes of an attempt that its former coordinator led.
  bool returning() const { return present_.awaited() != nullptr; }
  // Returns true if it awaits the worker of this name, or one with this process number.
  bool Awaits(const std::string& worker) const { return returning() && present_.awaited()->Awaits(worker); }
  bool Awaits(int32_t process) const { return returning() && present_.awaited()->Awaits(process); }
  // Takes a process back that tells what it has of the attempt. Returns why it cannot be; "" if it is.
  std::string TakeBack(StepEffects& out, const Worker& worker, const Reattach& m);
  // Gives the attempt up, because an awaited process does not come back to it: the run begins again.
  void GiveUpReturn(const std::string& cause);
  // Keeps a message of a process that is back until all are. Returns false if the run is not returning.
  template <class Message>
  bool Defer(SessionId from, Message& m) {
    if (!returning()) return false;
    if (!present_.awaited()->Defer(from, FromWorker(std::move(m))))
      GiveUpReturn("too many messages waited for the others");
    return true;
  }
  // Takes what a process keeps in memory of the run's state, from before the coordinator was started again.
  // Returns false if the run does not want it.
  bool TakeCopies(SessionId from, const CopiesHeld& m) { return present_.TakeAgain(from, m); }
  // Returns true if it takes fewer processes than it was submitted with: those that are there.
  bool takes_fewer() const { return present_.has_begun() && !gathering(); }
  // Assigns the run to the workers, in their order, or fails.
  void Start(StepEffects& out, const std::vector<Worker*>& workers, FencingNumbers* numbers);

  // ---- messages of its processes

  void Take(StepEffects& out, SessionId from, const Prepared& m);
  void Take(StepEffects& out, SessionId from, const Credit& m);
  void Take(StepEffects& out, SessionId from, const GroupId& m);
  void Take(StepEffects& out, SessionId from, Completions& m);
  void Take(StepEffects& out, SessionId from, Report& m);
  void Take(StepEffects& out, SessionId from, const Failed& m);
  void Take(StepEffects& out, SessionId from, Finished& m);
  void Take(StepEffects& out, SessionId from, Stalled& m);
  void Take(StepEffects& out, SessionId from, const SnapshotSaved& m);
  void Take(StepEffects& out, SessionId from, const CheckpointSealed& m);
  void Take(StepEffects& out, SessionId from, Validation& m);
  void Take(StepEffects& out, SessionId from, const CopiesHeld& m);

  // Notes that a process is gone, with all that it kept of any run's state.
  void LoseCopies(SessionId session) { present_.LoseCopies(session); }
  // Takes the loss of a member's process for good. `wrote`: as in WorkerExited.
  void Lose(StepEffects& out, SessionId session, const std::string& reason, const std::string& wrote = {});
  // Ends the attempt for the loss of a member's process.
  void EndForLoss(const RunMember& member, const std::string& reason, const std::string& wrote = {});
  // Ends the attempt for a process or a data link that is lost: the run begins again, or fails if it may not.
  void EndAttempt(const std::string& reason, RestartCause cause);
  // Lets the run go on with other processes: it begins again behind the next checkpoint that can be
  // announced, or behind copies where it saves none, so that no work is lost; at once where it has neither,
  // or has not made a step. This does not count as a loss.
  void Relocate(StepEffects& out, const std::string& reason);
  absl::Status CheckMove(const std::vector<Rank>& ranks) const { return relocation_.Check(ranks, blaming()); }
  // Orders the ranks to a process, unless they are there: the run begins again behind copies, or as behind
  // Relocate. Requires CheckMove. FailedPrecondition if work would be lost.
  absl::Status Move(StepEffects& out, const std::vector<Rank>& ranks, SessionId to,
                    const std::string& reason);
  // Lets the run go on under another schedule, behind the next checkpoint, if it can (ReplanRun).
  void Replan(StepEffects& out, ReplanRun& replan) { relocation_.Replan(out, replan, blaming()); }
  const RunPlacement& placement() const { return relocation_.placement(); }
  // Lets the run take any processes again: one of those that it was ordered to is not there.
  void ForgetPlacement() { relocation_.Forget(); }
  // Returns true if it goes on with fewer processes than it was submitted with, and may take in others
  // without losing work.
  bool MayExpand(int64_t now) const { return !blaming() && relocation_.MayExpand(now, options_.expand_ns); }
  // Announces snapshots and grants jobs, as far as both can go now.
  void Grant(StepEffects& out);

  // ---- end

  // Ends the run with a checkpoint, where it has made a step and has an output folder; else at once.
  void SaveAndCancel(StepEffects& out, const std::string& reason);
  void Fail(const std::string& reason) { End({RunState::kFailed, reason}); }
  void Cancel(const std::string& reason) { End({RunState::kCancelled, reason}); }
  // Returns how the run wishes to end; none while it goes on, or when it is closed.
  const std::optional<RunEnding>& ending() const { return ending_; }
  // Ends the run as it wishes, and drops what only a live run needs.
  void Close(StepEffects& out);
  // Begins again as the run wishes: from now on it waits for processes.
  void Restart(StepEffects& out);

  // ---- time

  // Returns when CheckDeadline or Grant has something to do though nothing happened; INT64_MAX for never.
  int64_t next_due() const;
  // Returns true while a reported failure waits for its cause (invariant 3).
  bool blaming() const { return failures_.any(); }
  const FirstFailure& first_failure() const { return failures_.first(); }
  // Fails the run, or ends its attempt, if the deadline of its state has passed.
  void CheckDeadline(StepEffects& out);

 private:
  // Goes on with a run that had not ended.
  void GoOn(StepEffects& out, RestoreRun& restored);
  // Goes on with the attempt whose processes are all back.
  void GoOnTogether(StepEffects& out);
  void End(RunEnding ending);
  void EndIf(std::optional<RunEnding> ending) {
    if (ending.has_value()) End(*std::move(ending));
  }
  void EndAsStored(const RunEnding& ending);
  // Takes the schedule that the attempt stopped for, if it did.
  void TakeReplan(StepEffects& out);
  // Drops what belongs to one attempt.
  void DropAttempt();
  // Returns true if the run saves checkpoints and has got so far that its processes may speak of them.
  bool TakesSnapshots() const { return checkpoints() != nullptr && info_.state >= RunState::kRunning; }
  // Gives the processes the whole time of the state again, because a checkpoint made progress.
  void RestartDeadline(int64_t now);
  const RunPlan& plan() const { return submission_.plan(); }
  RunAttempt* attempt() const { return present_.attempt(); }  // null while the run waits
  // Returns the checkpoints of the attempt; null where there is none, or it saves none.
  RunCheckpoints* checkpoints() const { return attempt() == nullptr ? nullptr : attempt()->checkpoints(); }
  void BeginRunning(StepEffects& out);
  void EndSteps(StepEffects& out);
  // Ends a run that was told to stop, once its attempt has.
  void EndStopped() { EndIf(relocation_.Stopped()); }
  void TakeRunning(StepEffects& out, RunMember& member, const std::vector<RunningJob>& reported);
  void SetStall(StepEffects& out, std::string sentence, std::string* of_member);
  // Returns true if the run goes on, or ends well, without more from the member.
  bool GoesOnWithout(StepEffects& out, RunMember& member, const std::string& what);

  const CoreOptions& options_;
  RunInfo info_;
  RunSubmission submission_;
  RunAttempts attempts_;
  PresentAttempt present_;
  RunProgress progress_;
  RunRelocation relocation_;
  RunStop stop_;
  RunFailures failures_;
  RunDeadlines deadlines_;
  RunFinish finish_;
  JobWatch job_watch_;
  std::optional<RunEnding> ending_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_H_
