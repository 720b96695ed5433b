// Makes a coordinator's planner of a function that plans at once.
#ifndef WEFT_TESTS_PROCESS_QUICK_PLANNER_H_
#define WEFT_TESTS_PROCESS_QUICK_PLANNER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/shell/server_options.h"

namespace weft {

using PlanText = absl::StatusOr<std::shared_ptr<const RunPlan>>(const std::string& spec);

inline Planner QuickPlanner(PlanText* plan) {
  return [plan](const std::string& spec) {
    return UnplannedRun{/*slow=*/false, [plan, spec] { return plan(spec); }};
  };
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_QUICK_PLANNER_H_
