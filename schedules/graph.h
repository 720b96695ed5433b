// The job graph of a schedule, in closed form: ranks, predecessors and successors of any job, without storing
// a run's jobs.
//
// An edge says that `to` waits for `from`, and which tensor travels along it. Edges between jobs of one rank
// carry their tensor in memory; edges between ranks are transfers. Worker, coordinator and simulator evaluate
// the same edges (DESIGN.md section 3).
//
// Invariants:
//   1. Predecessors(j) holds edge e exactly if Successors(e.from) holds it.
//   2. An edge from a job of a step before the run's first stands for the initial state and is complete
//   before the run. If it carries weights, they are among the initial ones: version 0 in a run from step 0 on
//   (the job is then of step -1), else a version from its checkpoint.
//   3. The edges of step t look like those of step t + period, but for edges that would come from before
//   step 0 (other than 2.), and for the way of a state (visits.h), which leaves out what is before the run's
//   first step and after its last.
//   4. An edge comes from the same step or an earlier one, but for those of a state's way.
// Thread-safe after construction. Jobs outside the schedule's sizes abort.
#ifndef WEFT_SCHEDULES_GRAPH_H_
#define WEFT_SCHEDULES_GRAPH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "schedules/collectives.h"
#include "schedules/job.h"
#include "schedules/relay.h"
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
  // Of kOrder into a reduce that is a collective, and of kOrder and kWeights into a job whose weights are
  // gathered by one: the collective may be started before `from` has ended, and ends after it. Nothing is
  // sent for it: the collective itself waits (collectives.h).
  bool joined = false;
};

class Graph {
 public:
  // Requires positive sizes, sound `inputs` (CheckInputs of check.h) and the functions `compute`, `weights`,
  // `priority`; everything else is CheckSchedule's. `steps` of the run: only the way of a state depends on
  // it.
  static constexpr int kForEver = 1 << 30;
  explicit Graph(Schedule schedule, int steps = kForEver, int first_step = 0);

  const Schedule& schedule() const { return schedule_; }
  int steps() const { return steps_; }
  int first_step() const { return first_step_; }

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
  // Gradients are summed by jobs of their own, before the updates that need the sums of others, or their
  // norm.
  bool has_reduce(int stage) const {
    return schedule_.clips || collective(stage) ||
           (members_[stage].size() > 1 && !sharded() && !relays(stage));
  }
  // The member has such a job; where holders relay, only its home sums.
  bool Reduces(int stage, int member) const { return has_reduce(stage) && MakesVersions(stage, member); }
  // Where gradients are clipped, the job that adds up the sums of squares of all reduce jobs of its step, its
  // own among them, and gives the total to the updates: the first stage's, whose backwards end last.
  bool TotalsNorm(const Job& job) const {
    return schedule_.clips && job.kind == JobKind::kReduce && job.stage == 0 && job.member == home(0);
  }
  // Its members reduce by a collective.
  bool collective(int stage) const { return collectives_.IsCollective(stage); }
  const CollectiveOrder& collectives() const { return collectives_; }
  // And that leaves each member its slice of the sum (a reduce-scatter), not all of it (an all-reduce).
  bool scatters_sum(int stage) const { return collective(stage) && sharded(); }
  // A compute job's weights are gathered by a collective of all members.
  bool GathersWeights(const Job& job) const { return collectives_.gathers() && HasMicrobatch(job.kind); }
  // The collective of `edge.to` can be started on its rank when `edge.from`, of the same rank, has ended.
  bool BeginsCollective(const Edge& edge) const;
  // Where gradients are clipped: the member's reduce gives the norm of what it sums. Where a collective
  // leaves all members the same sum, the first one's counts.
  bool GivesSquares(int stage, int member) const {
    return schedule_.clips && Reduces(stage, member) && (!collective(stage) || sharded() || member == 0);
  }
  // Each member holds a slice of the weights, not a copy.
  bool sharded() const { return schedule_.shards != nullptr; }
  // Its holders pass running sums and new versions on (Schedule::relays).
  bool relays(int stage) const { return relays_[stage].has_value(); }
  // Where holders relay, the member that has the optimizer's state and makes the versions.
  int home(int stage) const { return relays(stage) ? relays_[stage]->home() : 0; }
  // The member writes the stage, or its slice of it, into checkpoints.
  bool Saves(int stage, int member) const { return sharded() || member == home(stage); }
  // The member's updates are optimizer steps; else it adopts the versions that its home makes.
  bool MakesVersions(int stage, int member) const { return !relays(stage) || member == home(stage); }
  // A micro-batch's gradient leaves its job as it is: false when the rank that computes it sums it, or adds
  // it to a running sum.
  bool gradient_travels(int stage) const { return gradient_travels_[stage]; }
  // The version that a compute job reads.
  int VersionOf(const Job& job) const;
  // True when the job computes with a fetched copy.
  bool FetchesWeights(const Job& job) const;

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

  // Appends. `from` of Predecessors may be of a step before the run's first (invariant 2). Successors ignores
  // the end of the run: steps go on for ever, but on the way of a state, where the job must be of the run.
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
  void SumPredecessors(const Job& job, std::vector<Edge>* edges) const;
  void GradientSuccessors(const Job& job, std::vector<Edge>* edges) const;
  void ReduceSuccessors(const Job& job, std::vector<Edge>* edges) const;
  void UpdateSuccessors(const Job& job, std::vector<Edge>* edges) const;
  // graph_collective.cc
  bool MembersComputeAlone(int stage) const;
  void CollectivePredecessors(const Job& reduce, std::vector<Edge>* edges) const;
  void CollectiveSuccessors(const Job& reduce, std::vector<Edge>* edges) const;
  void JoinedGradients(const Job& backward, std::vector<Edge>* edges) const;
  void AddGathers();
  void GatherPredecessors(const Job& job, std::vector<Edge>* edges) const;
  void GatherSuccessors(const Job& job, std::vector<Edge>* edges) const;
  // graph_norm.cc
  template <typename Take>
  void EachReduce(int step, Take take) const;
  void NormPredecessors(const Job& job, std::vector<Edge>* edges) const;
  void NormSuccessors(const Job& reduce, std::vector<Edge>* edges) const;
  // graph_relay.cc
  void RelayPredecessors(const Job& job, std::vector<Edge>* edges) const;
  void RelaySuccessors(const Job& job, std::vector<Edge>* edges) const;
  // graph_state.cc
  void StatePredecessor(const Job& job, std::vector<Edge>* edges) const;
  void StateSuccessor(const Job& job, std::vector<Edge>* edges) const;
  Edge StateEdge(const Job& from, const Job& to) const;

  Schedule schedule_;
  int steps_, first_step_;
  std::optional<Visits> visits_;
  std::vector<std::vector<int>> inputs_, consumers_;
  std::vector<std::vector<Rank>> members_;
  std::vector<bool> gradient_travels_;
  std::vector<std::optional<Relay>> relays_;  // by stage
  CollectiveOrder collectives_;
  std::vector<bool> apart_;  // by stage and micro-batch
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

// The edges of steps flattened for loops over many steps: successors by index and step distance, which may be
// after the end of the run. The tensor is what travels where the two jobs are on different ranks.
//
// A table serves every step of its phase of the period. Where a state migrates, the first steps of the run
// and the last ones have tables of their own.
class StepEdges {
 public:
  struct Successor {
    int32_t index;     // job of the other step
    int16_t distance;  // steps ahead; negative only on the way of a state
    TensorKind tensor;
    bool joined;
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
  // By index: predecessors in the run's steps, which begin with `first_step`; the simulator's with 0,
  // whatever the graph's do.
  const std::vector<int32_t>& WaitingAt(int64_t step, int64_t first_step = 0) const {
    const Table& table = tables_[TableOf(step)];
    const int64_t before = std::min<int64_t>(step - first_step, max_distance_);
    return migrates_ ? table.waiting.front() : table.waiting[before];
  }
  // In some step, a job of a later one waits for the job.
  bool LeadsAhead(int64_t index) const;
  // The most steps that an edge leads ahead.
  int max_distance() const { return max_distance_; }
  // The edges of step t look like those of step t + period, but where a state migrates.
  int period() const { return migrates_ ? 1 : static_cast<int>(tables_.size()); }

 private:
  friend StepEdges Flatten(const Graph& graph);
  friend StepEdges FlattenRun(const Graph& graph);

  struct Table {
    std::vector<int32_t> begin;         // size jobs_per_step + 1
    std::vector<Successor> successors;  // of job i: [begin[i], begin[i + 1])
    // waiting[d][i]: predecessors of job i in the d steps before its own, and in that; the last row has all.
    // Where a state migrates, one row: those in the run.
    std::vector<std::vector<int32_t>> waiting;
  };

  // Adds a table of the step's successors in steps before `end`.
  Table& AppendTable(const Graph& graph, int step, int64_t end);

  size_t TableOf(int64_t step) const {
    if (!migrates_) return static_cast<size_t>(step) % tables_.size();
    if (step < first_step_ + border_) return static_cast<size_t>(step - first_step_);
    const auto tables = static_cast<int64_t>(tables_.size());
    return static_cast<size_t>(step < end_step_ - border_ ? border_ : step - end_step_ + tables);
  }

  bool migrates_ = false;
  int64_t first_step_ = 0, end_step_ = 0, border_ = 0;  // of a run whose state migrates
  std::vector<Table> tables_;  // [step mod period]; where a state migrates, of the border's steps
  int max_distance_ = 0;
};
StepEdges Flatten(const Graph& graph);
// Flatten, where a state migrates.
StepEdges FlattenRun(const Graph& graph);

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_H_
