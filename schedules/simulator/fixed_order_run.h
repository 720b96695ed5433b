// Simulates fixed orders by one pass over their jobs, without events.
//
// If ranks follow fixed orders, links take no time and nothing holds forwards back, then a job starts at the
// end of the job before it, or of the last of its inputs from other ranks. So the jobs of a step, put once
// into an order in which each comes behind those two, are computed by one addition each, step after step. An
// update stands right behind the last gradient that it sums. It is the longest path through the job graph.
// Private to the simulator; the result is that of simulation.h, to the last bit. One thread; once.
#ifndef WEFT_SCHEDULES_SIMULATOR_FIXED_ORDER_RUN_H_
#define WEFT_SCHEDULES_SIMULATOR_FIXED_ORDER_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "schedules/graph/progress.h"
#include "schedules/simulator/simulate.h"
#include "schedules/simulator/simulated_jobs.h"

namespace weft {

class FixedOrderRun {
 public:
  // Refers to graph and options. `held_bytes`: by rank, beside activations. `tables` are the graph's;
  // null to make them.
  FixedOrderRun(const Graph& graph, const SimulationOptions& options, const std::vector<double>& held_bytes,
                std::shared_ptr<const StepTables> tables = nullptr);

  // Tells whether one pass may do for this schedule and these options; `fits` tells it for certain. Otherwise
  // the general simulation has to run, which also says what is wrong with orders that cannot be followed.
  static bool MayFit(const Graph& graph, const SimulationOptions& options);
  bool fits() const { return fits_; }

  // Requires fits().
  SimulationResult Run();

 private:
  // A job that every step has, in the order of the pass.
  struct Entry {
    double duration;
    Rank rank;
    int32_t first_input;  // of it: [first_input, first_input of the next entry)
    bool begins, ends;    // an activation
    bool update;
    double activation;  // bytes
  };
  // An input: the end of a job on another rank, so many steps before.
  struct Input {
    int32_t entry;
    int32_t distance;
  };
  // A change of the number of activations over all ranks.
  struct Change {
    double time;
    double bytes;  // negative where one ends
    bool ends;
    bool operator<(const Change& o) const { return time < o.time || (time == o.time && ends && !o.ends); }
  };
  struct Predecessor {
    int32_t index;
    int32_t distance;
    bool same_rank;
  };

  bool ActivationsAreWhole() const;
  bool LineUp();
  bool PlaceUpdate(int32_t update, std::vector<std::vector<int32_t>>* lines,
                   std::vector<int32_t>* place) const;
  bool Order(const std::vector<std::vector<int32_t>>& lines);
  void CountStatics();
  void CountFetches();
  void CountAlive(double until);

  const Graph& graph_;
  const SimulationOptions& options_;
  const JobCosts costs_;
  const std::shared_ptr<const StepTables> tables_;
  const JobTable& numbers_;
  const SimulatedJobs jobs_;
  const SimulatedJobs::Table& table_;
  std::vector<std::vector<Predecessor>> predecessors_;  // by job index
  std::vector<Entry> entries_;                          // one more at the end
  std::vector<Input> inputs_;
  int longest_ = 0;  // distance of an input
  SimulationResult result_;
  // Changes of each rank that are not counted yet, by time; none once the most that can be alive have been.
  std::vector<std::vector<Change>> changes_;
  std::vector<Change> sorted_, merged_;
  int most_alive_ = 0;
  double most_bytes_ = 0;
  int alive_ = 0;
  double alive_bytes_ = 0;
  bool fits_ = false;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_FIXED_ORDER_RUN_H_
