// Plans a run anew from what a former run of it measured: `weft plan --from FOLDER` (docs/guide/plan.md).
//
// The folder's trace has the times of the last steps' jobs. They tell what the jobs cost and how fast each
// rank is; coordinator/replanning/ looks for a schedule that suits these speeds, with the cut of the run, so
// that the run can go on under it from its checkpoint.
//
// Failure: InvalidArgument with one sentence that names the file, for a folder without a trace, a trace of
// other ranks or stages, and a profile of another model.
#ifndef WEFT_CLIENT_PLANNING_MEASURED_PLAN_H_
#define WEFT_CLIENT_PLANNING_MEASURED_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/replanning/better_schedule.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_spec.h"

namespace weft {

struct MeasuredPlanOptions {
  std::string folder;
  std::string profile;  // of the layers on a rank of speed 1; empty: the folder's, if it has one
  double memory = 0;    // bytes of each rank; 0: the run's, else no limit
  double bandwidth = 0, latency = 0;  // of each link; 0: as measured
  double seconds = 10;                // of search
};

struct MeasuredPlan {
  std::string folder;
  RunSpec run;  // under its present schedule
  int first_step = 0, last_step = 0;
  RankCosts measured;
  bool knows_links = false;  // tensors travelled between processes
  BetterSchedule better;
};

absl::StatusOr<MeasuredPlan> PlanFromRun(const MeasuredPlanOptions& options);

nlohmann::ordered_json MeasuredPlanJson(const MeasuredPlan& plan);
// Returns the plan file of the better schedule.
std::string MeasuredPlanYaml(const MeasuredPlan& plan);
std::string MeasuredPlanTable(const MeasuredPlan& plan);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_MEASURED_PLAN_H_
