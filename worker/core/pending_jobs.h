// Follows the jobs of this process from their grant until they can start, and gives them to their rank then.
//
// A granted job is claimed. It can start when none of its inputs is missing, and then it goes to the ready
// jobs of its rank. Two kinds start in rounds. A job that sums gradients as they arrive can start when the
// next one is there (gradient_intake.h); one that begins with a joint operation when the inputs of that are
// (joint_operations.h). Each round that is over leads to the next.
//
// Under a budget forwards may wait until gradients have been taken (schedules/dispatch/admission.h). There a
// job that sums gradients takes them from the first grant of its step to its rank on, whether it is granted
// by then or not; it ends when it is.
//
// Invariants:
//   1. A job is claimed once. It is among the ready jobs once in each of its rounds, and not after its end.
//      The last round is of a claimed job.
//   2. A step stays in the window until all jobs of this process in it have ended; nothing of a step before
//      that is touched.
// Refers to the run, its ranks and the order of admission. Not movable; pure; one thread. Memory: a window of
// steps (schedules/graph/progress.h).
#ifndef WEFT_WORKER_CORE_PENDING_JOBS_H_
#define WEFT_WORKER_CORE_PENDING_JOBS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "schedules/dispatch/admission.h"
#include "schedules/graph/progress.h"
#include "worker/core/gradient_intake.h"
#include "worker/core/joint_operations.h"
#include "worker/core/local_ranks.h"
#include "worker/core/local_run.h"
#include "worker/core/worker_effects.h"

namespace weft {

class PendingJobs {
 public:
  PendingJobs(const LocalRun& run, const AdmissionOrder& admission, LocalRanks* ranks);
  PendingJobs(const PendingJobs&) = delete;
  PendingJobs& operator=(const PendingJobs&) = delete;

  Job JobOf(JobId id) const { return progress_.jobs().JobOf(id); }
  // Returns how many jobs are claimed and not done.
  int64_t claimed() const { return claimed_; }
  // Returns the first step that has not left the window.
  int first_step() const { return progress_.first_step(); }

  // Claims a job that is granted to the rank. Returns false if that changes nothing: it was claimed before,
  // has ended, or is another rank's.
  bool Claim(LocalRank& rank, const Job& job);
  // Lets the rank's jobs up to this step take gradients, where forwards wait for that. Returns those that may
  // from now on.
  std::vector<Job> BeginTaking(LocalRank& rank, int step);
  // Lets the job, which has not started, wait until a tensor has been given back; and notes that it has been.
  void AwaitTaking(JobId id);
  void Taken(JobId id);
  // Notes that an input is there: the gradient of the micro-batch, or, for -1, another one.
  void InputArrived(JobId id, int microbatch);
  // Notes that an input of the joint operation with which the job begins is there.
  void JointInputArrived(const Job& job) { joint_.InputArrived(job); }
  // Notes that the joint operation of the job is over. Requires that it has begun.
  void JointOperationDone(Rank rank, const Job& job);

  // Adds to the start what the job begins with: whether that is a part of its joint operation, the tensors
  // that it reads, and whether it is its last start.
  void AddInputs(JobId id, StartEffect* start);
  // Begins the next round of a job that takes gradients as they arrive and waits for more; or notes that a
  // joint operation has begun.
  void NextRound(JobId id);
  // Notes that the job is launched or done, for good.
  void NoteDone(LocalRank& rank, JobId id);
  // Counts the end of a job of the step. Returns true if it was the last of this process in the step.
  bool JobEnded(int step) { return progress_.End(step); }
  // While this returns true, `LeaveFirst` drops the first step.
  bool FirstHasEnded() const { return progress_.FirstHasEnded(); }
  void LeaveFirst();

  // Returns true if the job's next start begins a joint operation.
  bool BeginsJointly(const Job& job) { return joint_.IsNext(job); }
  // Returns true if the job takes gradients, whether it is claimed or not.
  bool Takes(const Job& job) { return (FlagsOf(run_.IdOf(job)) & kTakes) != 0; }
  // Returns true if the job is among the ready jobs of its rank, or has been started from there.
  bool IsQueued(JobId id) { return (FlagsOf(id) & kQueued) != 0; }
  // Returns true if it is neither queued nor done.
  bool IsWaiting(JobId id) { return (FlagsOf(id) & (kQueued | kDone)) == 0; }
  // Returns true if the job, which waits, waits for nothing but a gather of its weights, which has begun.
  bool AwaitsGather(JobId id) const;
  // Returns true if the job, which waits, waits for nothing but tensors that have to be given back.
  bool AwaitsTakings(JobId id) const;
  // Returns the groups of joint operations of the ranks of this process.
  std::vector<PrepareEffect::Group> JointGroups() const { return joint_.Groups(); }

 private:
  // The bits of a job's flags. A launched job is done as far as this process is concerned.
  static constexpr uint8_t kClaimed = 1, kQueued = 2, kDone = 4, kTakes = 8;

  StepProgress::Options ProgressOptions() const;
  void Consider(JobId id);
  bool CanStart(JobId id, const Job& job, bool joins);
  LocalRank& RankWith(JobId id) { return ranks_.Of(progress_.jobs().RankOf(id)); }
  // Returns the step of the job, which has not left the window.
  StepProgress::Step& StepWith(JobId id);
  uint8_t& FlagsOf(JobId id) { return StepWith(id).state[IndexOf(id)]; }
  int32_t& MissingOf(JobId id) { return StepWith(id).missing[IndexOf(id)]; }

  const LocalRun& run_;
  const AdmissionOrder& admission_;
  LocalRanks& ranks_;
  StepProgress progress_;  // of the jobs of this process
  int64_t claimed_ = 0;
  std::map<JobId, int32_t> takings_;  // how many tensors have to be given back, of the jobs that wait for any
  GradientIntake intake_;
  JointOperations joint_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_PENDING_JOBS_H_
