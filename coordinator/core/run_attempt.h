// Carries out one attempt of a run on its members: it is assigned to them, grants the jobs of its queue,
// saves checkpoints, passes the ids of collectives on, and, where it is told to, stops.
//
// An attempt that is told to stop goes on to the next checkpoint that can be announced, so that no work is
// lost: then the run ends, or goes on elsewhere (`relocates`). It has stopped when that checkpoint is sealed
// and every job of its steps has ended, so that each of its steps is reported. A run that goes on elsewhere
// may stop behind copies in memory instead (run_copies.h), when those of the step are complete.
//
// PresentAttempt (present_attempt.h) makes one when the run has processes, and drops it when the attempt is
// over; then nothing of it is left. It decides nothing about the run's state: Run (run.h) calls Begin when
// all processes are prepared, and Grant while the run runs.
//
// Refers to the members and the info of its run. Not movable; pure; one thread. Memory: a window
// of steps (work_queue.h).
#ifndef WEFT_COORDINATOR_CORE_RUN_ATTEMPT_H_
#define WEFT_COORDINATOR_CORE_RUN_ATTEMPT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_times.h"
#include "coordinator/core/joint_operation_watch.h"
#include "coordinator/core/rank_watch.h"
#include "coordinator/core/run_beginnings.h"
#include "coordinator/core/run_checkpoints.h"
#include "coordinator/core/run_copies.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/run_return.h"
#include "coordinator/core/run_submission.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/work_queue.h"

namespace weft {

class RunAttempt {
 public:
  // `saves`: the run has an output folder, and saves checkpoints there. `back`: of an attempt that goes on.
  RunAttempt(std::shared_ptr<const RunPlan> plan, ReductionMode reduction, const RunMembers& members,
             RunInfo* info, bool saves, const RunReturn* back = nullptr);
  RunAttempt(const RunAttempt&) = delete;
  RunAttempt& operator=(const RunAttempt&) = delete;

  const RunPlan& plan() const { return *plan_; }
  ReductionMode reduction() const { return reduction_; }
  WorkQueue& queue() { return queue_; }
  const WorkQueue& queue() const { return queue_; }
  RunCheckpoints* checkpoints() const { return checkpoints_.get(); }  // null where it saves none

  // Assigns the attempt to its members, at these addresses. `makes_copies`: of the state, behind each step.
  // `watched_before`: see Assign.
  void AssignTo(StepEffects& out, const std::vector<Peer>& peers, const RunSubmission& submission,
                const RunBeginnings::Beginning& beginning, bool makes_copies, int32_t watched_before) const;
  // Begins to grant, and seals the initial weights.
  void Begin(StepEffects& out);
  // Goes on, in place of Begin, as a coordinator before led it. Returns false if the words of its processes
  // do not fit.
  bool GoOn(StepEffects& out, const RunReturn& back);
  int64_t running_since_ns() const { return running_since_ns_; }
  // Counts its jobs, and its checkpoints while its run runs.
  void Count(int64_t now, Probe* probe) const;
  // Returns true if it has made a step.
  bool HasSteps() const { return queue_.steps_done() > plan_->first_step; }

  // Passes the id from the process of a group's first member to those of the others; one that is not its own
  // is counted as fenced.
  void Take(StepEffects& out, SessionId from, const GroupId& m) const;
  // Takes jobs of a rank that are done, and leaves those that count. Returns "forward (..) done on rank 2,
  // which was not granted there" for a fault of the worker; "" for none.
  std::string Complete(StepEffects& out, Completions* m);
  // Reports the steps that have ended and that no attempt before has made. Returns false if none has ended.
  bool EndSteps(StepEffects& out);
  // Returns when jobs were claimed and ended.
  const JobTimes& times() const { return times_; }
  // Takes what the process of these ranks says of their work, and returns what all said last.
  void See(int64_t now, const std::vector<Rank>& ranks, const Report& report) {
    seen_.Take(now, ranks, report);
  }
  const RankWatch& seen() const { return seen_; }
  // Returns those that the member's ranks have in hand, of the jobs that its process says it runs.
  std::vector<RunningJob> InHand(const RunMember& member, const std::vector<RunningJob>& running) const;
  // Takes the collectives that the devices of these ranks of one process have begun. Returns a sentence about
  // one that hangs; "" for none. `at_least_ns` as in JointOperationWatch::Take.
  std::string TakeJointOperations(const std::vector<Rank>& ranks,
                                  const std::vector<RunningJointOperation>& reported, int64_t at_least_ns) {
    return joint_operations_.Take(ranks, reported, at_least_ns);
  }
  // Returns the jobs that are granted to the member's ranks and not done.
  std::vector<Job> JobsInHand(const RunMember& member) const;
  // Notes that the rank, or any, may be granted jobs when the Step ends.
  void MayGrant(Rank rank) { may_grant_.push_back(rank); }
  void MayGrantAll() { all_may_grant_ = true; }
  // Tells the processes what has been settled since they were told last.
  void TellSettled(StepEffects& out);
  // Announces snapshots and grants jobs, as far as both can go now: none of the step `hold` or later ones.
  void Grant(StepEffects& out, int32_t hold);

  // Returns true if it can stop without losing work: it has made a step, and saves checkpoints.
  bool CanStop() const { return HasSteps() && checkpoints_ != nullptr; }
  // Stops behind a checkpoint, so that the run goes on elsewhere, or for good: then behind each step that was
  // reported. Requires that it saves checkpoints, and that the run runs. The newest call counts.
  void Stop(const std::string& reason, bool relocates);
  // Stops in front of the step, behind copies of its state, so that the run goes on elsewhere. Requires that
  // no job of that step or of a later one is granted.
  void StopBehindCopies(const std::string& reason, int32_t step);
  bool stops_behind_copies() const { return copies_stop_.has_value(); }
  // Notes that the checkpoint with which it was to stop could not be saved.
  void NoteStopUnsaved() { absl::StrAppend(&stop_reason_, "; ", info_->checkpoint_failure); }
  // Returns true once it was told to stop; `ends`: for good.
  bool stops() const { return !stop_reason_.empty(); }
  bool ends() const { return stops() && !relocates_; }
  bool relocates() const { return stops() && relocates_; }
  const std::string& stop_reason() const { return stop_reason_; }
  // Returns true once it has stopped: nothing of its steps is left to do.
  bool HasStopped(const RunCopies& copies) const;

  // Returns "the checkpoint of step 40 from process 1 (..); the validation of step 30 from process 0 (..)" of
  // those under way; "" for none.
  std::string DescribeUnderWay() const;
  // Returns "backward (step 3, stage 1, micro-batch 5) on rank 2 of process 1 (..), claimed 12 s ago and
  // ready 10 s ago", and so on for at most four, and the checkpoint and validation under way.
  std::string DescribeAwaited(int64_t now) const;

 private:
  bool AnnounceSnapshots(StepEffects& out, int32_t hold);
  void GrantReady(StepEffects& out);

  const std::shared_ptr<const RunPlan> plan_;
  const ReductionMode reduction_;
  const RunMembers& members_;
  RunInfo* const info_;
  WorkQueue queue_;
  JobTimes times_;
  RankWatch seen_;
  JointOperationWatch joint_operations_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::vector<Rank> may_grant_;  // ranks to look at when the Step ends; may repeat
  bool all_may_grant_ = false;
  int64_t running_since_ns_ = 0;
  Settled told_;             // what the processes were told last
  std::string stop_reason_;  // reason why it stops, and why the checkpoint was not saved; "" if it does not
  bool relocates_ = false;   // true if it stops so that the run goes on elsewhere
  std::optional<int32_t> copies_stop_;  // step in front of which it stops behind copies
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_ATTEMPT_H_
