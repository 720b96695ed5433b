// Gives the job graph of a schedule in closed form: ranks and predecessors of any job, without storing a
// run's jobs.
//
// An edge says that `to` waits for `from`, and which tensor travels along it. Edges between jobs of one rank
// carry their tensor in memory; edges between ranks are transfers. Worker, coordinator and simulator evaluate
// the same edges. Only predecessors are written down: those of backpropagation and of the schedule's order
// here, those of a stage's weights in its protocol (sync/protocol.h). Successors are their inversion
// (step_edges.h).
//
// Invariants:
//   1. An edge from a job of a step before the run's first stands for the initial state and is complete
//      before the run. If it carries weights, they are among the initial ones: version 0 in a run from step 0
//      on (the job is then of step -1), else a version from its checkpoint.
//   2. The edges of step t look like those of step t + period, but for edges that would come from before step
//      0 (other than 1.), and for the route of a state (sync/state_route.h), which leaves out what is before
//      the run's first step and after its last.
//   3. An edge comes from the same step or an earlier one, but for those of a state's route.
// Thread-safe after construction. Jobs outside the schedule's sizes abort.
#ifndef WEFT_SCHEDULES_GRAPH_GRAPH_H_
#define WEFT_SCHEDULES_GRAPH_GRAPH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "schedules/graph/edge.h"
#include "schedules/job.h"
#include "schedules/run_terms.h"
#include "schedules/schedule.h"
#include "schedules/sync/joint_order.h"
#include "schedules/sync/protocol.h"

namespace weft {

// The kinds that work on one micro-batch.
inline constexpr JobKind kComputeKinds[] = {JobKind::kForward, JobKind::kBackward, JobKind::kBackwardInput,
                                            JobKind::kBackwardWeight};

class Graph {
 public:
  // Requires positive sizes, sound `inputs` (CheckInputs of check.h) and the functions `compute`, `weights`,
  // `priority`; everything else is CheckSchedule's. `steps` of the run: only a graph that
  // depends_on_steps() differs by them.
  static constexpr int kForEver = 1 << 30;
  explicit Graph(RunSchedule schedule, int steps = kForEver, int first_step = 0);
  // Returns the graph of the same scheme under the same terms, for a run of other steps.
  Graph ForSteps(int steps, int first_step = 0) const { return Graph(schedule_, steps, first_step); }

  // Return the scheme, the terms of the run, and both together.
  const Schedule& schedule() const { return schedule_.scheme; }
  const RunTerms& terms() const { return schedule_.terms; }
  const RunSchedule& run_schedule() const { return schedule_; }
  int steps() const { return steps_; }
  int first_step() const { return first_step_; }

  // Returns true if the edges of the run's first and last steps differ from those of the steps between.
  bool depends_on_steps() const { return route() != nullptr; }

  // Returns the protocol by which the ranks that hold the stage come to the same weights.
  const Protocol& protocol(int stage) const { return *protocols_[stage]; }
  // Returns the route of states that go from job to job; null where they do not.
  const StateRoute* route() const { return protocols_[0]->route(); }
  // Returns the joint operations of all stages; empty where there are none.
  const JointOrder& joint_order() const { return *joint_order_; }

  // Jobs of one step, numbered densely: [0, jobs_per_step).
  int jobs_per_step() const { return compute_jobs_ + static_cast<int>(tail_.size()); }
  // Returns how many are compute jobs: the first ones.
  int compute_jobs() const { return compute_jobs_; }
  Job JobAt(int step, int index) const;
  int IndexOf(const Job& job) const;

  // Return the stages whose outputs the stage reads, and those that read its output, ascending: in a chain
  // the stage before and the one behind it.
  bool is_chain() const { return terms().inputs.empty(); }
  const std::vector<int>& inputs(int stage) const { return inputs_[stage]; }
  const std::vector<int>& consumers(int stage) const { return consumers_[stage]; }

  // Returns the rank that executes the job.
  Rank RankOf(const Job& job) const;
  // Returns the priority: smaller goes first among ready jobs of a rank; reduce and update are negative and
  // go before all compute jobs. Under strict replay a compute job's priority is its place in its rank's order
  // over all steps: 0, 1, 2, ..
  int64_t PriorityOf(const Job& job) const;

  // Returns true if the ranks replay fixed orders.
  bool replays() const { return !schedule().order.empty(); }

  // Returns true if some job may run beside a forward of its rank.
  bool has_pairs() const { return has_pairs_; }

  // Bits of OrderMark of the job in its rank's fixed order; kInTurn without one.
  uint8_t MarksOf(const Job& job) const { return marks_.empty() ? 0 : marks_[IndexOf(job)]; }

  // Returns the ranks that hold the stage's weights, ascending; a job's `member` is an index here.
  const std::vector<Rank>& members(int stage) const { return protocols_[stage]->ranks(); }
  // Returns true if the job adds up the norms of a step's gradients, and gives the total to the updates.
  bool TotalsNorm(const Job& job) const {
    return job.kind == JobKind::kReduce && protocol(job.stage).holder(job.member).totals_norm;
  }
  // Returns true if the job sums gradients that leave the jobs that made them, as they come.
  bool TakesGradients(const Job& job) const {
    if (HasMicrobatch(job.kind) || !protocol(job.stage).gradients_leave()) return false;
    return job.kind == JobKind::kReduce || !protocol(job.stage).has_reduce();
  }
  // Returns true if the weights of a compute job are gathered by a joint operation of all holders.
  bool GathersWeights(const Job& job) const { return joint_order_->gathers() && HasMicrobatch(job.kind); }
  // Returns true if the job begins with a joint operation: it starts twice, and ends when that is over and it
  // has done the rest.
  bool IsJoint(const Job& job) const {
    return job.kind == JobKind::kReduce ? protocol(job.stage).reduces_jointly() : GathersWeights(job);
  }
  // Returns true if the joint operation of `edge.to` can be started on its rank when `edge.from`, of the same
  // rank, has ended.
  bool BeginsJointly(const Edge& edge) const;
  // Returns the version that a compute job reads, or that an update begins with.
  int VersionOf(const Job& job) const;
  // Returns the member that a compute job reads and feeds, where weights are whole (Layout).
  int SourceOf(const Job& job) const;
  // Returns true if the compute job reads the weights, or the slice, of the member, or feeds it.
  bool Reads(const Job& job, int member) const {
    return protocol(job.stage).layout() != Layout::kWhole || SourceOf(job) == member;
  }
  // Returns true if the job computes with a fetched copy.
  bool FetchesWeights(const Job& job) const;

  // Returns the job of the same rank, stage, step and kind that fetches the weights with which this one
  // computes too; nothing where the job fetches them itself, or none are fetched (Schedule::keeps_fetched).
  std::optional<Job> FetchedBy(const Job& job) const;
  // Returns true if other jobs compute with the weights that the job fetches.
  bool KeepsFetched(const Job& job) const {
    return !keeps_fetched_.empty() && HasMicrobatch(job.kind) && keeps_fetched_[IndexOf(job)];
  }

  // Returns true if a compute job's micro-batch has its forward and its backward on different ranks (in some
  // step). The backward then starts over from the stage's input: it waits for that activation too, and the
  // forward leaves nothing.
  bool HasRemoteBackward(const Job& job) const {
    return any_remote_backward_ &&
           remote_backward_[static_cast<size_t>(job.stage) * schedule().microbatches + job.microbatch];
  }

  // Returns the last kind of a micro-batch's backward on a stage, whose end frees the activation and
  // completes the gradient.
  JobKind final_backward() const { return schedule().final_backward(); }
  // Returns the kind whose output is the gradient of the stage's input.
  JobKind input_backward() const { return schedule().input_backward(); }
  bool IsComputeKindUsed(JobKind kind) const;

  // Appends. `from` may be of a step before the run's first (invariant 1). On the route of a state the job
  // must be of the run.
  void Predecessors(const Job& job, Edges* edges) const;

  // Appends the words of what the job's rank does, in order.
  void Operations(const Job& job, std::vector<Operation>* operations) const {
    protocol(job.stage).AddOperations(*this, job, operations);
  }

 private:
  int KindsPerMicrobatch() const { return schedule().split_backward ? 3 : 2; }
  void LinkStages();
  void NumberTails();
  void NumberPlaces();
  void FindRemoteBackwards();
  void FindKeptWeights();
  void FindKeptWeights(int stage, JobKind kind);
  void ActivationEdges(const Job& job, Edges* edges) const;
  void BackwardPredecessors(const Job& job, Edges* edges) const;

  RunSchedule schedule_;
  int steps_, first_step_;
  std::vector<std::vector<int>> inputs_, consumers_;
  Protocols protocols_;
  const JointOrder* joint_order_ = nullptr;  // the protocols' own
  std::vector<bool> remote_backward_;        // by stage and micro-batch
  bool any_remote_backward_ = false;
  // Fetches for kept weights, by job index: the micro-batch whose job fetches them for this one, or -1; and
  // whether the job fetches for others.
  std::vector<int32_t> fetched_by_;
  std::vector<bool> keeps_fetched_;
  int compute_jobs_ = 0;  // of a step
  // The reduces and updates of a step, as of step 0, numbered behind the compute jobs; and by stage where
  // each member's reduce (2 m) and update (2 m + 1) are; -1 for none.
  std::vector<Job> tail_;
  std::vector<std::vector<int>> place_in_tail_;
  std::vector<int32_t> place_;  // under strict replay: of each compute job in its rank's order
  std::vector<uint8_t> marks_;  // by index; empty where no entry has one
  bool has_pairs_ = false;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_GRAPH_H_
