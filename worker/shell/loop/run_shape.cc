#include "worker/shell/loop/run_shape.h"

#include <memory>
#include <utility>

#include "run/run_schedule.h"
#include "run/run_text.h"
#include "schedules/check/check.h"

namespace weft {

absl::StatusOr<WorkerCore::RunShape> ParseRunShape(const std::string& text) {
  absl::StatusOr<RunSpec> spec = ParseRunText(text);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<RunSchedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) return schedule.status();
  auto tables = CheckedTables(*schedule);
  if (!tables.ok()) return tables.status();
  const auto run = std::make_shared<const ScheduledRun>(
      ScheduledRun{*std::move(spec), std::make_shared<const RunSchedule>(*std::move(schedule))});
  return WorkerCore::RunShape{*run->schedule, run->spec.end_step(), run->spec.first_step(),
                              *std::move(tables), run};
}

}  // namespace weft
