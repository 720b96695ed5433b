#include "coordinator/shell/spec_planner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "run/json_text.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "schedules/graph/size.h"

namespace weft {

namespace {

constexpr int64_t kSlowBytes = int64_t{64} << 20;  // plans of this size take about half a second
constexpr int64_t kSlowPairs = 100'000;  // stages times micro-batches: making the schedule takes long

absl::StatusOr<RunSpec> ReadSpec(const std::string& text) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text);
  if (!json.ok())
    return absl::InvalidArgumentError(absl::StrCat("the run's specification ", json.status().message()));
  return ParseRunSpec(*json);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RunPlan>> PlanSpec(const std::string& text) {
  absl::StatusOr<RunSpec> spec = ReadSpec(text);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<Schedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) return schedule.status();
  const CheckpointSpec& checkpoint = spec->checkpoint;
  auto plan = MakeRunPlan(spec->name, ToText(spec->schedule), *std::move(schedule), spec->end_step(),
                          spec->first_step(), ReductionOf(spec->schedule),
                          {checkpoint.every_steps, int64_t{checkpoint.every_seconds} * 1'000'000'000,
                           checkpoint.keep, spec->validate.every});
  if (!plan.ok()) return plan;
  auto restartable = std::make_shared<RunPlan>(**plan);
  restartable->restarts = spec->restarts;
  restartable->resumed_spec = [spec = *std::move(spec)](const std::string& folder, int32_t step) {
    RunSpec resumed = spec;
    resumed.resume = {folder, step};
    return ToJson(resumed).dump();
  };
  return restartable;
}

bool PlansSlowly(const std::string& text) {
  const absl::StatusOr<RunSpec> spec = ReadSpec(text);
  if (!spec.ok()) return false;
  if (int64_t{spec->stages()} * spec->train.microbatches > kSlowPairs) return true;
  const absl::StatusOr<Schedule> schedule = ScheduleOf(*spec);
  return schedule.ok() && SizeOf(*schedule).bytes() > kSlowBytes;
}

}  // namespace weft
