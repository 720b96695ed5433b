// Follows how far a run has come: a window of consecutive steps with, for each of their jobs, the inputs
// that it still waits for.
//
// The simulator, the coordinator's queue, the worker and the checks of a schedule all follow a run in this
// way. A job begins with a count of missing inputs; each input that comes lowers it; at zero the job can run.
// A step enters the window when it is opened and leaves it at the front when all of its followed jobs have
// ended, so memory does not grow with the number of steps. The owners differ in two points only: which inputs
// they count (InputRule), and whose jobs they follow.
//
// Jobs are named by number here. JobTable has the facts of a job by number, so that a loop over jobs turns no
// number into a job and back.
//
// Invariants:
//   1. Steps enter in ascending order, each once, and leave in that order.
//   2. An input of a job is counted once: `missing` is never negative.
// Pure, not thread-safe. No allocation in steady state: the place of a step that has left serves a new one.
#ifndef WEFT_SCHEDULES_GRAPH_PROGRESS_H_
#define WEFT_SCHEDULES_GRAPH_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "schedules/graph/graph.h"
#include "schedules/graph/step_edges.h"

namespace weft {

// The number of a job: its step in the upper half, its index there (Graph::IndexOf) in the lower.
using JobId = int64_t;
constexpr JobId MakeJobId(int64_t step, int64_t index) { return step * (int64_t{1} << 32) + index; }
constexpr int32_t StepOf(JobId id) { return static_cast<int32_t>(id >> 32); }
constexpr int32_t IndexOf(JobId id) { return static_cast<int32_t>(id & 0xffffffff); }

// The jobs of a step by index, and the rank of each.
class JobTable {
 public:
  explicit JobTable(const Graph& graph);

  int size() const { return static_cast<int>(jobs_.size()); }
  Job JobOf(JobId id) const {
    Job job = jobs_[IndexOf(id)];
    job.step = StepOf(id);
    return job;
  }
  // Returns the job of step 0 with this index.
  const Job& First(int index) const { return jobs_[index]; }
  Rank RankOf(JobId id) const { return RanksAt(StepOf(id))[IndexOf(id)]; }
  // Returns the ranks of the jobs of the step, by index.
  const std::vector<Rank>& RanksAt(int step) const { return ranks_[PhaseOf(step)]; }
  int PhaseOf(int step) const { return ranks_.size() == 1 ? 0 : step % static_cast<int>(ranks_.size()); }
  int period() const { return static_cast<int>(ranks_.size()); }

 private:
  std::vector<Job> jobs_;
  std::vector<std::vector<Rank>> ranks_;  // [step mod period]
};

// The tables of a graph's steps. One is made for a graph and handed to all who follow its steps. Immutable
// once made; thread-safe.
struct StepTables {
  explicit StepTables(const Graph& graph) : edges(graph), jobs(graph) {}

  const StepEdges edges;
  const JobTable jobs;
};
// Returns `made`, the graph's tables; makes them where it is null.
std::shared_ptr<const StepTables> TablesOf(const Graph& graph, std::shared_ptr<const StepTables> made);

class StepProgress {
 public:
  // Jobs of a rank in a step that have not ended, and those of micro-batches among them.
  struct Remaining {
    int32_t jobs = 0, compute = 0;
  };
  struct Step {
    std::vector<int32_t> missing;    // by job index
    std::vector<uint8_t> state;      // the owner's, by job index; 0 when the step is opened
    int32_t remaining = 0;           // followed jobs that have not ended
    std::vector<Remaining> of_rank;  // empty unless asked for
  };

  // Returns how many of the edges that lead to the job are inputs to wait for. Without a rule, edges from
  // jobs of the run are. A run whose states migrate has none: a state brings all that its stops wait for.
  using InputRule = std::function<int(const Job& job, const Edges& predecessors)>;

  struct Options {
    int first_step = 0;  // of the run
    InputRule rule = nullptr;
    std::vector<bool> followed = {};  // whether the owner follows the jobs of each rank; empty for all
    bool by_rank = false;             // count the remaining jobs of each rank too
  };
  // Refers to `graph`. `tables` are the graph's; null to make them.
  StepProgress(const Graph& graph, Options options, std::shared_ptr<const StepTables> tables = nullptr);

  const JobTable& jobs() const { return jobs_; }
  const StepEdges& edges() const { return edges_; }

  // The open steps are [first_step, end_step).
  int first_step() const { return first_; }
  int end_step() const { return end_; }
  bool empty() const { return first_ == end_; }

  // Opens the step, and those before it that are not open. It must not have left.
  Step& Open(int step) {
    while (step >= end_) OpenNext();
    return At(step);
  }
  Step& At(int step) { return steps_[static_cast<size_t>(step) & mask_]; }
  const Step& At(int step) const { return steps_[static_cast<size_t>(step) & mask_]; }
  int32_t& MissingOf(JobId id) { return At(StepOf(id)).missing[IndexOf(id)]; }
  uint8_t& StateOf(JobId id) { return At(StepOf(id)).state[IndexOf(id)]; }

  // Counts an input of a job of an open step; true if it was the last.
  bool Arrive(JobId id) { return --MissingOf(id) == 0; }

  // Counts the end of a followed job; true if it was the step's last. The step stays in the window until
  // LeaveFirst.
  bool End(int step) { return --At(step).remaining == 0; }
  // Counts the end by rank, too. Requires Options::by_rank.
  bool End(int step, Rank rank, bool computes) {
    Step& at = At(step);
    --at.of_rank[rank].jobs;
    at.of_rank[rank].compute -= computes;
    return End(step);
  }
  // Returns the remaining jobs of a rank in a step that has not left. Requires Options::by_rank.
  const Remaining& RemainingOf(int step, Rank rank) const {
    return step < end_ ? At(step).of_rank[rank] : all_of_rank_[jobs_.PhaseOf(step)][rank];
  }
  bool FirstHasEnded() const { return first_ < end_ && At(first_).remaining == 0; }
  void LeaveFirst() { ++first_; }

 private:
  void OpenNext();
  void CountInputs(int step, std::vector<int32_t>* missing);
  void Grow();

  const Graph& graph_;
  const std::shared_ptr<const StepTables> tables_;
  const StepEdges& edges_;
  const JobTable& jobs_;
  const InputRule rule_;
  const int run_begin_;                              // the first step of the run
  std::vector<int32_t> followed_;                    // [step mod period]: followed jobs
  std::vector<std::vector<Remaining>> all_of_rank_;  // [step mod period]; empty unless asked for
  int first_, end_;
  size_t mask_;              // the number of places is a power of two
  std::vector<Step> steps_;  // [step & mask]
  // [step mod period]: counts of a step all of whose edges come from the run; empty until there is one.
  std::vector<std::vector<int32_t>> steady_;
};

// Walks through the jobs of the open steps in an order in which each comes after its predecessors there, as
// far as there is one: Kahn's algorithm. Calls `act(id)` for each job, and `lead(id, to)` before each edge on
// which `to` waits for it. `next(index)`: of the same step, a further job that waits for this one, and counts
// it among its inputs; -1 for none. Returns how many jobs were reached; those on or behind a cycle have
// missing inputs afterwards.
template <typename Act, typename Lead, typename Next>
int64_t ForEachInOrder(StepProgress* progress, Act act, Lead lead, Next next) {
  std::vector<JobId> ready;
  for (int step = progress->first_step(); step < progress->end_step(); ++step) {
    for (int i = 0; i < progress->jobs().size(); ++i) {
      if (progress->At(step).missing[i] == 0) ready.push_back(MakeJobId(step, i));
    }
  }
  int64_t reached = 0;
  while (!ready.empty()) {
    const JobId id = ready.back();
    ready.pop_back();
    ++reached;
    act(id);
    const auto arrive = [&](int step, int index) {
      if (step >= progress->end_step()) return;
      const JobId to = MakeJobId(step, index);
      lead(id, to);
      if (progress->Arrive(to)) ready.push_back(to);
    };
    const int step = StepOf(id);
    for (const auto& s : progress->edges().SuccessorsOf(step, IndexOf(id)))
      arrive(step + s.distance, s.index);
    if (const int after = next(IndexOf(id)); after >= 0) arrive(step, after);
  }
  return reached;
}

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_PROGRESS_H_
