// The job graph of a schedule, in closed form: ranks, predecessors and successors of any job, without storing
// a run's jobs.
//
// An edge says that `to` waits for `from`, and which tensor travels along it. Edges between jobs of one rank
// carry their tensor in memory; edges between ranks are transfers. Worker, coordinator and simulator evaluate
// the same edges (DESIGN.md section 3).
//
// Invariants:
//   1. Predecessors(j) holds edge e exactly if Successors(e.from) holds it.
//   2. An edge from a job of step -1 stands for the initial state: it holds weights version 0 and is complete
//   before the run.
//   3. The edges of a step look like those of every other step, but for edges that would come from before
//   step 0 (other than 2.), for the tensor of an edge from an update, which is an order edge where the
//   job is on the holder's rank in that step, and for the way of a state (visits.h), which leaves out what is
//   before step 0 and after the last step.
//   4. An edge comes from the same step or an earlier one, but for those of a state's way.
// Thread-safe after construction. Jobs outside the schedule's sizes abort.
#ifndef WEFT_SCHEDULES_GRAPH_H_
#define WEFT_SCHEDULES_GRAPH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "schedules/job.h"
#include "schedules/schedule.h"
#include "schedules/visits.h"

namespace weft {

struct Edge {
  Job from;
  Job to;
  TensorKind tensor = TensorKind::kOrder;
  // Slice number of gradients, and of weights in width-wise shards; of an activation, which of its stage's
  // consumers gets it, and of an input gradient, which of its stage's inputs it is for.
  int32_t part = 0;
  int32_t version = 0;  // of the weights
};

class Graph {
 public:
  // Requires positive sizes, sound `inputs` (CheckInputs of check.h) and the functions `compute`, `weights`,
  // `priority`; everything else is CheckSchedule's. `steps` of the run: only the way of a state depends on
  // it.
  static constexpr int kForEver = 1 << 30;
  explicit Graph(Schedule schedule, int steps = kForEver);

  const Schedule& schedule() const { return schedule_; }
  int steps() const { return steps_; }

  // The state of each stage goes from job to job; one rank updates it, the stage's only member.
  bool migrates() const { return visits_.has_value(); }
  const Visits& visits() const { return *visits_; }  // requires migrates()

  // Jobs of one step, numbered densely: [0, jobs_per_step).
  int jobs_per_step() const { return jobs_per_step_; }
  Job JobAt(int step, int index) const;
  int IndexOf(const Job& job) const;

  // The stages whose outputs the stage reads, and those that read its output, ascending: in a chain the stage
  // before and the one behind it.
  bool is_chain() const { return schedule_.inputs.empty(); }
  const std::vector<int>& inputs(int stage) const { return inputs_[stage]; }
  const std::vector<int>& consumers(int stage) const { return consumers_[stage]; }

  // Who executes the job.
  Rank RankOf(const Job& job) const;
  // Smaller goes first among ready jobs of a rank; reduce and update are negative and go before all compute
  // jobs. Under strict replay a compute job's priority is its place in its rank's order over all steps: 0, 1,
  // 2, ..
  int64_t PriorityOf(const Job& job) const;

  // The ranks replay fixed orders.
  bool replays() const { return !schedule_.order.empty(); }

  // Some job may run beside a forward of its rank.
  bool has_pairs() const { return has_pairs_; }

  // Bits of OrderMark of the job in its rank's fixed order; kInTurn without one.
  uint8_t MarksOf(const Job& job) const { return marks_.empty() ? 0 : marks_[IndexOf(job)]; }

  // The ranks that hold the stage's weights, ascending; a job's `member` is an index here.
  const std::vector<Rank>& members(int stage) const { return members_[stage]; }
  bool has_reduce(int stage) const { return members_[stage].size() > 1 && !sharded(); }
  // Each member holds a slice of the weights, not a copy.
  bool sharded() const { return schedule_.shards != nullptr; }
  // False when each micro-batch's gradient is summed by the rank that computes it, so that no gradient leaves
  // its job.
  bool gradient_travels(int stage) const { return gradient_travels_[stage]; }
  // The version that a compute job reads.
  int VersionOf(const Job& job) const;
  // True when the job computes with a fetched copy.
  bool FetchesWeights(const Job& job) const;
  // True when it does so in some step of the period.
  bool MayFetchWeights(const Job& job) const;
  // The job reads the weights of different members in different steps; it waits for the updates of all.
  bool ChangesHolder(const Job& job) const {
    return !changes_holder_.empty() && changes_holder_[IndexOf(job)];
  }

  // A compute job's micro-batch has its forward and its backward on different ranks (in some step). The
  // backward then starts over from the stage's input: it waits for that activation too, and the forward
  // leaves nothing.
  bool IsApart(const Job& job) const {
    return any_apart_ && apart_[static_cast<size_t>(job.stage) * schedule_.microbatches + job.microbatch];
  }

  // The last kind of a micro-batch's backward on a stage, whose end frees the activation and completes the
  // gradient.
  JobKind final_backward() const {
    return schedule_.split_backward ? JobKind::kBackwardWeight : JobKind::kBackward;
  }
  // The kind whose output is the gradient of the stage's input.
  JobKind input_backward() const {
    return schedule_.split_backward ? JobKind::kBackwardInput : JobKind::kBackward;
  }
  bool IsComputeKindUsed(JobKind kind) const;

  // Appends. `from` of Predecessors may be of step -1 (invariant 2). Successors ignores the end of the run:
  // steps go on for ever, but on the way of a state, where the job must be of the run.
  void Predecessors(const Job& job, std::vector<Edge>* edges) const;
  void Successors(const Job& job, std::vector<Edge>* edges) const;

 private:
  int KindsPerMicrobatch() const { return schedule_.split_backward ? 3 : 2; }
  int MemberOf(int stage, Rank rank) const;
  void LinkStages();
  void NumberPlaces();
  void ActivationEdges(const Job& job, std::vector<Edge>* edges) const;
  void BackwardPredecessors(const Job& job, std::vector<Edge>* edges) const;
  void ForwardSuccessors(const Job& job, std::vector<Edge>* edges) const;
  void BackwardSuccessors(const Job& job, std::vector<Edge>* edges) const;
  void FindApart();
  void ShardEdges(const Job& job, std::vector<Edge>* edges) const;
  void WeightsEdge(const Job& job, std::vector<Edge>* edges) const;
  void UpdatePredecessors(const Job& job, std::vector<Edge>* edges) const;
  void GradientSuccessors(const Job& job, std::vector<Edge>* edges) const;
  void UpdateSuccessors(const Job& job, std::vector<Edge>* edges) const;
  void StatePredecessor(const Job& job, std::vector<Edge>* edges) const;
  void StateSuccessor(const Job& job, std::vector<Edge>* edges) const;
  Edge StateEdge(const Job& from, const Job& to) const;

  Schedule schedule_;
  int steps_;
  std::optional<Visits> visits_;
  std::vector<std::vector<int>> inputs_, consumers_;
  std::vector<std::vector<Rank>> members_;
  std::vector<bool> gradient_travels_;
  // By index; empty where the period is 1.
  std::vector<bool> may_fetch_;
  std::vector<bool> changes_holder_;  // the job reads another member's weights in some steps
  std::vector<bool> apart_;           // by stage and micro-batch
  bool any_apart_ = false;
  std::vector<int> tail_;  // index of each stage's first reduce or update
  int jobs_per_step_ = 0;
  std::vector<int32_t> place_;  // under strict replay: of each compute job in its rank's order
  std::vector<uint8_t> marks_;  // by index; empty where no entry has one
  bool has_pairs_ = false;
  // Inverse of schedule_.precedes: by index, (index, step distance) of the jobs that wait.
  struct Follower {
    int index;
    int distance;
  };
  std::vector<std::vector<Follower>> followers_;
};

// The edges of steps flattened for loops over many steps: successors by index and step distance. The tensor
// is what travels where the two jobs are on different ranks.
//
// One table serves all steps, whose successors may then be after the end of the run. Where a state migrates,
// the first steps and the last ones have tables of their own.
class StepEdges {
 public:
  struct Successor {
    int32_t index;     // job of the other step
    int16_t distance;  // steps ahead; negative only on the way of a state
    TensorKind tensor;
    int16_t part;
  };
  class Successors {
   public:
    Successors(const Successor* begin, const Successor* end) : begin_(begin), end_(end) {}
    const Successor* begin() const { return begin_; }
    const Successor* end() const { return end_; }

   private:
    const Successor *begin_, *end_;
  };

  Successors SuccessorsOf(int64_t step, int64_t index) const {
    const Table& table = tables_[TableOf(step)];
    return {table.successors.data() + table.begin[index], table.successors.data() + table.begin[index + 1]};
  }
  // By index: predecessors in steps >= 0.
  const std::vector<int32_t>& WaitingAt(int64_t step) const {
    return waiting_[migrates_ ? TableOf(step) : step < max_distance_ ? step : max_distance_];
  }
  // In some step, a job of a later one waits for the job.
  bool LeadsAhead(int64_t index) const;
  // The most steps that an edge leads ahead.
  int max_distance() const { return max_distance_; }

 private:
  friend StepEdges Flatten(const Graph& graph);
  friend StepEdges FlattenRun(const Graph& graph);

  struct Table {
    std::vector<int32_t> begin;         // size jobs_per_step + 1
    std::vector<Successor> successors;  // of job i: [begin[i], begin[i + 1])
  };

  int64_t TableOf(int64_t step) const {
    if (!migrates_) return 0;
    if (step < border_) return step;
    const auto tables = static_cast<int64_t>(tables_.size());
    return step < steps_ - border_ ? border_ : step - steps_ + tables;
  }

  bool migrates_ = false;
  int64_t steps_ = 0, border_ = 0;  // of a run whose state migrates
  std::vector<Table> tables_;
  int max_distance_ = 0;
  // Of each table where a state migrates; else of each of the first steps, the last row of all later ones.
  std::vector<std::vector<int32_t>> waiting_;
};
StepEdges Flatten(const Graph& graph);
// Flatten, where a state migrates.
StepEdges FlattenRun(const Graph& graph);

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_H_
