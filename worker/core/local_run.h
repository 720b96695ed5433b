// Holds the fixed facts of a run as one process sees it: the job graph, which of its ranks are here, in which
// process the others are, and the keys of its tensors.
//
// Every state machine of the worker core asks these, so that none of them needs to know another for it.
//
// Invariants: immutable once made. Ownership: the machines of a run refer to it, so it is not copied or
// moved. Failure: jobs and stages outside the schedule's sizes abort (graph.h). Pure; thread-safe.
#ifndef WEFT_WORKER_CORE_LOCAL_RUN_H_
#define WEFT_WORKER_CORE_LOCAL_RUN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "worker/core/tensor_key.h"

namespace weft {

struct ScheduledRun;  // run/run_schedule.h; the core only hands it on

class LocalRun {
 public:
  // The job graph's sources.
  struct Shape {
    RunSchedule schedule;
    int steps = 1;       // step before which the run ends
    int first_step = 0;  // first step; an earlier run made all before, whose checkpoint this one begins with
    // CheckedTables of the schedule; null to make them, as where collectives change its edges.
    std::shared_ptr<const StepTables> tables = nullptr;
    // The run that this was made from, for the shell; null where there is none.
    std::shared_ptr<const ScheduledRun> run = nullptr;
  };

  LocalRun(const Assign& assign, Shape shape);
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  const Assign& assignment() const { return assignment_; }
  const std::shared_ptr<const ScheduledRun>& run() const { return run_; }
  const Graph& graph() const { return graph_; }
  const std::shared_ptr<const StepTables>& tables() const { return tables_; }
  int steps() const { return steps_; }
  int first_step() const { return first_step_; }
  // Returns how many steps may be under way at a time.
  int StepsAtOnce() const { return 1 + graph_.schedule().MaxStaleness(); }

  // Returns true for a rank of the run that this process has.
  bool HasRank(Rank rank) const {
    return rank >= 0 && rank < static_cast<Rank>(place_of_rank_.size()) && IsLocal(rank);
  }
  // The next require a rank of the run.
  bool IsLocal(Rank rank) const { return place_of_rank_[rank] >= 0; }
  // Returns the index of the rank among those of this process; -1 for one of another process.
  int PlaceOf(Rank rank) const { return place_of_rank_[rank]; }
  int32_t ProcessOf(Rank rank) const { return assignment_.process_of_rank[rank]; }
  // Returns the number of ranks of this process.
  int ranks() const { return static_cast<int>(assignment_.leases.size()); }

  JobId IdOf(const Job& job) const { return MakeJobId(job.step, graph_.IndexOf(job)); }
  // Returns true if the edge is complete before the run (invariant 1 of graph.h).
  bool IsBeforeRun(const Edge& e) const { return e.from.step < first_step_; }
  bool IsInitialWeights(const Edge& e) const { return IsBeforeRun(e) && e.tensor == TensorKind::kWeights; }
  TensorKey KeyOf(const Edge& edge) const {
    return TensorKey::OfEdge(assignment_.run, assignment_.epoch, graph_, edge);
  }

 private:
  const Assign assignment_;
  const std::shared_ptr<const ScheduledRun> run_;
  const Graph graph_;
  const std::shared_ptr<const StepTables> tables_;  // of the graph
  const int steps_, first_step_;
  std::vector<int> place_of_rank_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_LOCAL_RUN_H_
