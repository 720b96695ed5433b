// Finds the route of a stage's state from job to job, where it migrates (migrating.cc): on which rank it is,
// and when.
//
// The state of a stage is all that the training keeps of it: the live versions of its weights, the sum of
// gradients in progress, and the optimizer's state. It is at one job at a time, a stop of its route: at the
// stage's compute jobs of all steps, in the order of their ticks, and at each step's update right after the
// step's last backward, on the same rank. Between two stops on different ranks it moves from one to the
// other. If steps overlap, a stop of a later step may come before one of an earlier step; at both ends of
// the run the stops of steps that do not exist are left out.
//
// Invariants, for a schedule and ticks that CheckRoute takes:
//   1. Each job of the stage in steps 0 to steps - 1 is one stop: Before and After walk through all of them,
//      and are each other's inverse.
//   2. Backwards of a step are stops in the order of micro-batches, and all of them before those of the next
//      step, so that one sum is in progress at a time and is added in order.
//   3. An update comes before every stop that reads the version it makes.
// Pure; thread-safe after construction. Jobs of other kinds, stages or steps abort.
#ifndef WEFT_SCHEDULES_SYNC_STATE_ROUTE_H_
#define WEFT_SCHEDULES_SYNC_STATE_ROUTE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "schedules/run_terms.h"
#include "schedules/schedule.h"

namespace weft {

// Gives the time at which the state is at a compute job of any step, on a clock of equal ticks.
using Ticks = std::function<int64_t(const Job&)>;

class StateRoute {
 public:
  // Copies what it needs of the schedule, which CheckRoute takes. The run has the steps [first_step, steps).
  StateRoute(const Schedule& schedule, Ticks tick, int steps, int first_step = 0);

  // Returns when the state is at the job: twice the tick of a compute job; an update stands behind its last
  // backward.
  int64_t PlaceOf(const Job& job) const;

  // Returns the job at which the state of the stage begins.
  Job First(int stage) const;
  // Return the stops next to one: nothing where the state begins, and where it ends.
  std::optional<Job> Before(const Job& stop) const;
  std::optional<Job> After(const Job& stop) const;
  // Returns the backward that the step's update comes after.
  Job LastBackward(int step, int stage) const;

  // Returns the newest version that the state holds when it leaves the stop.
  int NewestAfter(const Job& stop) const;
  // Returns true if some later stop reads the version of the weights, or would in a step behind the last: the
  // checkpoint keeps what these read.
  bool IsReadAfter(const Job& stop, int version) const;
  // Returns how many versions the state holds when it leaves the stop: the newest, and older ones that are
  // still read.
  int VersionsAfter(const Job& stop) const;
  // Returns the most versions that it holds at the stop.
  int VersionsDuring(const Job& stop) const;

 private:
  struct Stop {
    int32_t microbatch;
    JobKind kind;
    int32_t shift;  // cycles from the step's own to the one in which the stop is
  };
  struct Stage {
    std::vector<Stop> stops;     // of a cycle, in order
    std::vector<int> of_job;     // by [microbatch * 2 + backward]: place in `stops`
    std::vector<int> staleness;  // by micro-batch
    int last_backward = 0;       // micro-batch
    int64_t reach = 0;           // stops within which the next one of the run is, if there is one
    int max_staleness = 0;
  };

  // Compute jobs of a stage are numbered through all cycles.
  int64_t NumberOf(const Job& job) const;
  Job JobOf(int stage, int64_t number) const;
  bool InRun(const Job& job) const { return job.step >= first_step_ && job.step < steps_; }
  bool IsLastBackward(const Job& job) const;
  // Returns the compute job that the update stands behind; another job itself.
  Job Anchor(const Job& stop) const;

  Ticks tick_;
  int steps_, first_step_;
  std::vector<Stage> stages_;
};

// Returns InvalidArgument, naming the jobs, for a state that has no sound way: no ticks or ticks that are not
// the same in every step, two stops of a stage at once, sums out of order, a version that is read before it
// is made, a rank that would do a step's job before one of the step before, a job that its inputs reach only
// after its stop; or for features that do not go with it.
absl::Status CheckRoute(const RunSchedule& schedule, const Ticks& tick);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_STATE_ROUTE_H_
