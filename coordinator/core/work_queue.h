// Keeps the jobs of one run: which are blocked, ready, claimed, done; and which each rank claims next.
//
// blocked --all predecessors done--> ready          claimed --completed--> done
// \________________ Grant (in claim order) _______/^
//
// Claims run ahead of readiness: a rank is granted its next jobs in claim order, ready or not, up to its
// credit; the worker decides when a claimed job starts. So readiness is not needed to hand out work; it is
// tracked to count, and to name what is awaited when nothing moves.
//
// Steps live in a window (schedules/graph/progress.h), which begins with the run's first: a step is reached
// when the first rank claims into it and retired when all its jobs are done, so memory does not grow with the
// number of steps. The window spans the steps that ranks can be apart by dependencies plus what credit spans.
//
// Invariants:
//   1. Each job is granted to its rank once, and done once; Complete tells a duplicate from a violation.
//   2. Steps are reported done in order.
//   3. outstanding(rank) = granted - done, never more than the credit given to Grant.
//
// Pure, not thread-safe. It allocates nothing per job in steady state.
#ifndef WEFT_COORDINATOR_CORE_WORK_QUEUE_H_
#define WEFT_COORDINATOR_CORE_WORK_QUEUE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/run_plan.h"
#include "proto/session/messages.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"

namespace weft {

struct JobCounts {
  int64_t blocked = 0, ready = 0, claimed = 0;  // of the steps that have been reached
  int64_t done = 0;                             // of the run
};

class WorkQueue {
 public:
  explicit WorkQueue(const std::shared_ptr<const RunPlan>& plan) : WorkQueue(plan, plan->first_step) {}
  // Goes on with an attempt whose coordinator was started again: all steps before `begin` have ended.
  WorkQueue(std::shared_ptr<const RunPlan> plan, int32_t begin);
  // Takes a rank's report that it has been granted so many jobs in the attempt, with this credit. Call it
  // once for each rank, before any Grant. Returns false if the report cannot be right.
  bool TakeGranted(Rank rank, int64_t granted, int32_t credit);

  // Appends the next jobs of `rank` in claim order until `credit` are outstanding or the window ends.
  void Grant(Rank rank, int credit, std::vector<Job>* jobs);

  enum class Outcome {
    kDone,
    kDuplicate,  // was done before: nothing changed
    kViolation,  // was never granted to this rank: nothing changed
  };
  Outcome Complete(Rank rank, const Completion& completion);

  struct EndedStep {
    int32_t step = 0;
    double loss = 0;  // mean over the micro-batches in their order
    bool has_loss = false;
    int64_t end_ns = 0;  // end of its last update
    std::optional<double> gradient_norm = {};
  };
  // Appends the steps that ended since the last call, in order.
  void TakeEndedSteps(std::vector<EndedStep>* steps);

  bool all_done() const { return steps_done() == plan_->steps; }
  // Returns the steps done of the whole training, those of earlier runs included.
  int32_t steps_done() const { return progress_.first_step(); }
  int outstanding(Rank rank) const { return ranks_[rank].outstanding; }

  // Holds back the jobs of this step and later ones; INT32_MAX for none.
  void SetHold(int32_t step) { hold_ = step; }
  int32_t hold() const { return hold_; }
  // Returns the step behind the last of which a job has been granted.
  int32_t granted_end() const { return std::max(steps_done(), granted_end_); }
  // Grants reach no step from this one on before more steps have ended.
  int32_t reach() const { return steps_done() + window_; }
  // Returns true if Grant with this credit would give something.
  bool CanGrant(Rank rank, int credit) const;
  const JobCounts& counts() const { return counts_; }

  // Returns the jobs that are granted to the rank and not done, in claim order: the first `most`.
  std::vector<Job> InHand(Rank rank, size_t most = SIZE_MAX) const;
  bool IsInHand(Rank rank, const Job& job) const;
  // Returns true if the job is done; `job` must be one of the attempt.
  bool IsDone(const Job& job) const { return job.step < steps_done() || StateAt(job) == kDone; }
  // Returns true if all predecessors of a job of a step that has been reached are done.
  bool IsReady(const Job& job) const {
    return progress_.At(job.step).missing[plan_->graph.IndexOf(job)] == 0;
  }
  // Returns the job that the rank is granted next, once credit, window and hold let it; nothing behind the
  // last.
  std::optional<Job> NextOf(Rank rank) const;

  // A job that everything waits for: its predecessors are all done, and it is not. AwaitedJobs returns at
  // most one for each rank, oldest step first.
  struct Awaited {
    Rank rank;
    Job job;
    bool granted;
  };
  std::vector<Awaited> AwaitedJobs(size_t most) const;

 private:
  enum State : uint8_t { kWaiting, kClaimed, kDone };
  // The figures that the completions of a step have reported.
  struct Report {
    std::vector<double> loss;  // by micro-batch
    int losses = 0;
    int64_t end_ns = 0;
    std::optional<double> gradient_norm = {};
  };
  struct RankState {
    std::vector<std::vector<int32_t>> order;  // [step mod period]: job indices
    int32_t step = 0;                         // step of the next job to claim
    size_t position = 0;
    int outstanding = 0;
  };

  void IndexPhase(int phase);
  // Counts the rank's jobs of the steps from the attempt's first on, before `end`.
  int64_t JobsBefore(const RankState& rank, int32_t end) const;
  void Claim(RankState& rank, size_t most, std::vector<Job>* jobs);
  int IndexOrNone(const Job& job) const;
  // Returns the state of a job of a step that has not been retired.
  uint8_t StateAt(const Job& job) const {
    if (job.step >= reached_end()) return kWaiting;
    return progress_.At(job.step).state[plan_->graph.IndexOf(job)];
  }
  Report& ReportOf(int32_t step) { return reports_[step - steps_done()]; }
  // The steps that have been reached and not retired are [steps_done, reached_end).
  int32_t reached_end() const { return steps_done() + static_cast<int32_t>(reports_.size()); }
  bool Reach(int32_t step);
  void ReachNext();
  void WidenFor(int credit);
  void ReleaseSuccessors(JobId id);
  void Retire();

  const std::shared_ptr<const RunPlan> plan_;
  StepProgress progress_;  // of the steps that have been reached, and those that their jobs lead to
  std::vector<RankState> ranks_;
  int least_jobs_of_rank_ = 1;
  int32_t window_ = 2;
  int32_t hold_ = INT32_MAX;
  int32_t granted_end_ = 0;

  std::deque<Report> reports_;              // of the steps from steps_done on
  std::vector<std::vector<double>> spare_;  // losses of steps that were retired, to be filled again
  std::vector<EndedStep> ended_;
  JobCounts counts_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WORK_QUEUE_H_
