#include "worker/shell/loop/run_shape.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "run/json_text.h"
#include "run/run_schedule.h"
#include "schedules/check/check.h"

namespace weft {

absl::StatusOr<RunSpec> ParseRunSpecText(const std::string& text) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text);
  if (!json.ok())
    return absl::InvalidArgumentError(absl::StrCat("the run's specification ", json.status().message()));
  return ParseRunSpec(*json);
}

absl::StatusOr<WorkerCore::RunShape> ParseRunShape(const std::string& text) {
  absl::StatusOr<RunSpec> spec = ParseRunSpecText(text);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<Schedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) return schedule.status();
  auto tables = CheckedTables(*schedule);
  if (!tables.ok()) return tables.status();
  return WorkerCore::RunShape{*std::move(schedule), spec->end_step(), spec->first_step(), *std::move(tables)};
}

}  // namespace weft
