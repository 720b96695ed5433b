// A run's plan and the specification that goes to its workers.
#ifndef WEFT_COORDINATOR_CORE_PLANNED_SPEC_H_
#define WEFT_COORDINATOR_CORE_PLANNED_SPEC_H_

#include <memory>
#include <string>

#include "coordinator/core/run_plan.h"

namespace weft {

struct PlannedSpec {
  std::shared_ptr<const RunPlan> plan;
  std::string spec;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_PLANNED_SPEC_H_
