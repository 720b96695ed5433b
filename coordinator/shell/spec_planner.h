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

// Returns the text of the run with the schedule, JSON as a run file has it, in the place of its own. Texts
// that are no JSON stay as they are.
std::string WithSchedule(const std::string& text, const std::string& schedule);

// Makes the plan of a run from its schedule, which it checks, as it does the ranks of the run's network.
// InvalidArgument for a schedule that cannot run, or a network with fewer ranks.
absl::StatusOr<std::shared_ptr<const RunPlan>> PlanRun(const RunSpec& run, RunSchedule schedule);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_
