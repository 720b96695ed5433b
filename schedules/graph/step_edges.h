// Flattens the edges of steps for loops over many steps: the inversion of Graph::Predecessors over a period.
//
// A table serves every step of its phase of the period, and gives each job's successors by index and step
// distance; these may be behind the end of the run. If the graph depends on the run's steps, the first steps
// and the last ones have tables of their own.
//
// Invariants:
//   1. For jobs of steps from 0 on, SuccessorsOf(j) holds an entry exactly for each edge from j that
//      Predecessors of its successor gives.
//   2. A job's successors come in the order in which its outputs are handed on: by tensor, those without one
//      last; then jobs of the same sort as it (that have a micro-batch, or that have none) before others;
//      then by index.
// Immutable once made; thread-safe.
#ifndef WEFT_SCHEDULES_GRAPH_STEP_EDGES_H_
#define WEFT_SCHEDULES_GRAPH_STEP_EDGES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

class StepEdges {
 public:
  struct Successor {
    int32_t index;      // of the job in its step
    int16_t distance;   // steps ahead; negative only on the route of a state
    TensorKind tensor;  // what travels if the two jobs are on different ranks
    bool joined;
    int32_t part;
  };
  class Successors {
   public:
    Successors(const Successor* begin, const Successor* end) : begin_(begin), end_(end) {}
    const Successor* begin() const { return begin_; }
    const Successor* end() const { return end_; }

   private:
    const Successor *begin_, *end_;
  };

  explicit StepEdges(const Graph& graph);

  Successors SuccessorsOf(int64_t step, int64_t index) const {
    const Table& table = tables_[TableOf(step)];
    return {table.successors.data() + table.begin[index], table.successors.data() + table.begin[index + 1]};
  }
  // Appends the edges from the job. They may be to steps behind the run's last, but on the route of a state.
  void AppendSuccessors(const Graph& graph, const Job& job, Edges* edges) const;

  // Returns, by index, the number of predecessors in the run's steps, which begin with `first_step`; the
  // simulator's begin with 0, whatever the graph's do.
  const std::vector<int32_t>& WaitingAt(int64_t step, int64_t first_step = 0) const {
    const Table& table = tables_[TableOf(step)];
    const int64_t before = std::min<int64_t>(step - first_step, max_distance_);
    return of_run_ ? table.waiting.front() : table.waiting[before];
  }
  // Returns the most steps that an edge leads ahead.
  int max_distance() const { return max_distance_; }
  // The edges of step t look like those of step t + period, but where they depend on the run's steps.
  int period() const { return of_run_ ? 1 : static_cast<int>(tables_.size()); }

 private:
  struct Table {
    std::vector<int32_t> begin;         // size jobs_per_step + 1
    std::vector<Successor> successors;  // of job i: [begin[i], begin[i + 1])
    // waiting[d][i]: predecessors of job i in the d steps before its own, and in that; the last row has all.
    // A graph whose edges depend on the run's steps has one row: the predecessors in the run.
    std::vector<std::vector<int32_t>> waiting;
  };
  struct Found;

  void InvertPeriod(const Graph& graph);
  void InvertRun(const Graph& graph);
  void Fill(const Graph& graph, const std::vector<Found>& found, Table* table);
  bool HasTable(int64_t step) const;

  size_t TableOf(int64_t step) const {
    if (!of_run_) return static_cast<size_t>(step) % tables_.size();
    if (step < first_step_ + border_) return static_cast<size_t>(step - first_step_);
    const auto tables = static_cast<int64_t>(tables_.size());
    return static_cast<size_t>(step < end_step_ - border_ ? border_ : step - end_step_ + tables);
  }

  bool of_run_ = false;
  int64_t first_step_ = 0, end_step_ = 0, border_ = 0;  // of a run that the edges depend on
  std::vector<Table> tables_;  // [step mod period]; of such a run, of the border's steps and one between
  int max_distance_ = 0;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_STEP_EDGES_H_
