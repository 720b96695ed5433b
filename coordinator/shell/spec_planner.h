// Plans for the coordinator: a run file's JSON text becomes a run plan.
#ifndef WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_
#define WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/core/run_plan.h"
#include "coordinator/shell/server_options.h"
#include "run/run_spec.h"
#include "schedules/run_terms.h"

namespace weft {

// Parses the text, and makes the schedule unless that alone takes long. InvalidArgument or NotFound that says
// what is wrong with the run file, and where.
absl::StatusOr<UnplannedRun> ReadRun(const std::string& text);

// Makes the plan of a run from its schedule, which it checks. InvalidArgument for one that cannot run.
absl::StatusOr<std::shared_ptr<const RunPlan>> PlanRun(const RunSpec& run, RunSchedule schedule);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_
