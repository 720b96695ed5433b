#include "coordinator/shell/spec_planner.h"

#include <utility>

#include "nlohmann/json.hpp"
#include "proto/run/run_schedule.h"
#include "proto/run/run_spec.h"

namespace weft {

absl::StatusOr<std::shared_ptr<const RunPlan>> PlanSpec(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("the run's specification is not JSON");
  absl::StatusOr<RunSpec> spec = ParseRunSpec(json);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<Schedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) return schedule.status();
  return MakeRunPlan(spec->name, ToText(spec->schedule), *std::move(schedule), spec->end_step(),
                     spec->first_step(), spec->schedule.reduction == "fast");
}

}  // namespace weft
