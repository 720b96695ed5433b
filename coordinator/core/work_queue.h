// The jobs of one run: which are blocked, ready, claimed, done; what each rank claims next.
//
//   blocked --all predecessors done--> ready          claimed --completed--> done
//      \________________ Grant (in claim order) _______/^
//
// Claims run ahead of readiness: a rank is granted its next jobs in claim order, ready or not, up to its
// credit; the worker decides when a claimed job starts. So readiness is not needed to hand out work; it is
// tracked to count, and to name what is awaited when nothing moves.
//
// Steps live in a window, which begins with the run's first: a step is materialized when the first rank
// claims into it and retired when all its jobs are done, so memory does not grow with the number of steps.
// The window spans the steps that ranks can be apart by dependencies plus what credit spans.
//
// Invariants:
//   1. Each job is granted to its rank once, and done once; Complete tells a duplicate from a violation.
//   2. Steps are reported done in order.
//   3. outstanding(rank) = granted - done, never more than the credit given to Grant.
// Pure, not thread-safe. No allocation per job in steady state.
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
#include "schedules/graph.h"
#include "schedules/step_edges.h"

namespace weft {

struct JobCounts {
  int64_t blocked = 0, ready = 0, claimed = 0;  // of the materialized steps
  int64_t done = 0;                             // of the run
};

class WorkQueue {
 public:
  explicit WorkQueue(std::shared_ptr<const RunPlan> plan);

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
  // Steps that ended since the last call, in order; appended.
  void TakeEndedSteps(std::vector<EndedStep>* steps);

  bool all_done() const { return first_step_ == plan_->steps; }
  // Of the whole training: those that an earlier run made count.
  int32_t steps_done() const { return first_step_; }
  int outstanding(Rank rank) const { return ranks_[rank].outstanding; }

  // No job of this step or a later one is granted; INT32_MAX for none.
  void SetHold(int32_t step) { hold_ = step; }
  int32_t hold() const { return hold_; }
  // The step behind the last of which a job has been granted.
  int32_t granted_end() const { return std::max(first_step_, granted_end_); }
  // Grants reach no step from this one on before more steps have ended.
  int32_t reach() const { return first_step_ + window_; }
  // True if Grant with this credit would give something.
  bool CanGrant(Rank rank, int credit) const;
  const JobCounts& counts() const { return counts_; }

  // What everything waits for: for each rank at most one job whose predecessors are all done and which is not
  // done, oldest step first.
  struct Awaited {
    Rank rank;
    Job job;
    bool granted;
  };
  std::vector<Awaited> AwaitedJobs(size_t most) const;

 private:
  enum State : uint8_t { kWaiting, kClaimed, kDone };
  struct Step {
    std::vector<State> state;      // by job index
    std::vector<int32_t> pending;  // predecessors not done, by job index
    std::vector<double> loss;      // by micro-batch
    int losses = 0;
    int done = 0;
    int64_t end_ns = 0;
    std::optional<double> gradient_norm = {};
  };
  struct RankState {
    std::vector<std::vector<int32_t>> order;  // [step mod period]: job indices
    int32_t step = 0;                         // next to claim
    size_t position = 0;
    int outstanding = 0;
  };

  void IndexPhase(int phase);
  Rank RankAt(int32_t step, int index) const { return rank_of_[step % period_][index]; }
  int IndexOrNone(const Job& job) const;
  Step* StepAt(int32_t step) const { return steps_[step - first_step_].get(); }
  int32_t end_step() const { return first_step_ + static_cast<int32_t>(steps_.size()); }
  bool Reach(int32_t step);
  void Materialize();
  void WidenFor(int credit);
  bool IsDone(int32_t step, int index) const {
    return step < first_step_ || StepAt(step)->state[index] == kDone;
  }
  void ReleaseSuccessors(int32_t step, int index);
  void Retire();

  const std::shared_ptr<const RunPlan> plan_;
  const StepEdges edges_;
  const int period_;                        // ranks of step t are those of step t + period
  std::vector<Job> jobs_;                   // of step 0, by index
  std::vector<std::vector<Rank>> rank_of_;  // [step mod period][job index]
  std::vector<int32_t> leads_ahead_;        // jobs that later steps wait for, by index
  std::vector<RankState> ranks_;
  int least_jobs_of_rank_ = 1;
  int32_t window_ = 2;
  int32_t hold_ = INT32_MAX;
  int32_t granted_end_ = 0;

  int32_t first_step_;  // all before are done
  std::deque<std::unique_ptr<Step>> steps_;
  std::vector<std::unique_ptr<Step>> spare_;
  std::vector<EndedStep> ended_;
  JobCounts counts_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WORK_QUEUE_H_
