// Plans for the coordinator: a run file's JSON text becomes a run plan.
#ifndef WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_
#define WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/core/run_plan.h"

namespace weft {

// Makes the plan. InvalidArgument or NotFound that says what is wrong with the run file, and where.
absl::StatusOr<std::shared_ptr<const RunPlan>> PlanSpec(const std::string& spec);

// Returns true if PlanSpec may take longer than a moment. False also for text that PlanSpec refuses at once.
bool PlansSlowly(const std::string& spec);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SPEC_PLANNER_H_
