// Plans a run for the coordinator: the job graph, the order in which each rank claims, the number of steps.
//
// Immutable and shared: made once at submission, outside the core, because it simulates two steps of the
// schedule.
#ifndef WEFT_COORDINATOR_CORE_RUN_PLAN_H_
#define WEFT_COORDINATOR_CORE_RUN_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/job_watch.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "schedules/run_terms.h"
#include "schedules/sync/reduction_mode.h"

namespace weft {

struct RunSpec;  // run/run_spec.h; the core only hands it on

// Says whether checkpoints are saved, when on the way, how many of these stay, and when weights are
// validated.
struct CheckpointRule {
  int32_t every_steps = 0;  // steps between checkpoints; 0 for none
  int64_t every_ns = 0;     // time after the last one was announced; 0 for none
  int32_t keep = 2;
  // The weights behind each multiple of so many steps, and behind the last, are validated; 0 for none.
  int32_t validate_every = 0;
  bool none = false;  // true if nothing is saved
};

struct RunPlan {
  std::string name;      // name of the run
  std::string schedule;  // as the user wrote it
  int32_t steps = 0;     // step before which the run ends; it makes those from first_step on
  Graph graph;
  // Claim order, [step mod period][rank]: the rank's jobs of such a step in the order in which a run with
  // nominal durations starts them. Their `step` is not used. Shared, because a run that begins again copies
  // its plan, and this is most of it.
  std::shared_ptr<const std::vector<std::vector<std::vector<Job>>>> claim_order;
  int32_t first_step = 0;  // first step to make; an earlier run made all before

  // Way in which the run file wants gradients summed. For kFast, and where a stage's devices can sum jointly,
  // `fast` is the same plan carried out so; the run takes it if its processes allow.
  ReductionMode reduction = ReductionMode::kOrdered;
  std::shared_ptr<const RunPlan> fast;
  std::string unsound;  // reason why it has none though it has stages that could; empty otherwise

  int64_t bytes = 0;  // upper estimate of the memory that the coordinator needs for it
  CheckpointRule checkpoint = {};
  std::shared_ptr<const StepTables> tables = nullptr;  // of the graph
  // The specification that it was made from, for the run's record; null if there is none.
  std::shared_ptr<const RunSpec> spec = nullptr;

  // Settings that a process has once for all of its runs: runs with different ones share no process.
  std::string process_settings;

  // Losses of a process in a row, without a new step between them, that do not end the run.
  int32_t restarts = 0;
  // Processes that keep a second copy of what each process's ranks save; 0 for none.
  int32_t redundancy = 0;
  JobTimeout job_timeout = {};
  // Returns the specification of the run that goes on from the checkpoint of the step in the folder, or, for
  // "", from copies of it in memory; none for a run that can only begin again where it began.
  std::function<std::string(const std::string& checkpoint, int32_t step)> resumed_spec = nullptr;

  int ranks() const { return graph.schedule().ranks; }
};

// Makes a plan. InvalidArgument, as CheckSchedule, for a schedule that cannot run; also if no step is left to
// make.
absl::StatusOr<std::shared_ptr<const RunPlan>> MakeRunPlan(std::string name, std::string schedule_text,
                                                           RunSchedule schedule, int32_t steps,
                                                           int32_t first_step = 0,
                                                           ReductionMode reduction = ReductionMode::kOrdered,
                                                           const CheckpointRule& checkpoint = {},
                                                           std::shared_ptr<const RunSpec> spec = nullptr);

// Returns the same plan for a run that goes on from a later step.
std::shared_ptr<const RunPlan> PlanFrom(const RunPlan& plan, int32_t first_step);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_PLAN_H_
