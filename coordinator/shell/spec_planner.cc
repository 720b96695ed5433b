#include "coordinator/shell/spec_planner.h"

#include <cstdint>
#include <utility>

#include "nlohmann/json.hpp"
#include "run/process_settings.h"
#include "run/run_schedule.h"
#include "run/run_text.h"
#include "schedules/graph/size.h"

namespace weft {

namespace {

constexpr int64_t kSlowBytes = int64_t{64} << 20;  // plans of this size take about half a second
constexpr int64_t kSlowPairs = 100'000;  // stages times micro-batches: making the schedule takes long

}  // namespace

absl::StatusOr<UnplannedRun> ReadRun(const std::string& text) {
  absl::StatusOr<RunSpec> spec = ParseRunText(text);
  if (!spec.ok()) return spec.status();
  if (spec->resume.copies)
    return absl::InvalidArgumentError("a new run has no copies in memory to go on from");
  if (absl::Status weights = CheckHasWeights(*spec); !weights.ok()) return weights;
  if (int64_t{spec->stages()} * spec->train.microbatches > kSlowPairs) {
    return UnplannedRun{/*slow=*/true,
                        [run = *std::move(spec)]() -> absl::StatusOr<std::shared_ptr<const RunPlan>> {
                          absl::StatusOr<RunSchedule> schedule = ScheduleOf(run);
                          if (!schedule.ok()) return schedule.status();
                          return PlanRun(run, *std::move(schedule));
                        }};
  }
  absl::StatusOr<RunSchedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) return schedule.status();
  const bool slow = SizeOf(schedule->scheme).bytes() > kSlowBytes;
  return UnplannedRun{
      slow, [run = *std::move(spec), schedule = *std::move(schedule)] { return PlanRun(run, schedule); }};
}

std::string WithSchedule(const std::string& text, const std::string& schedule) {
  nlohmann::json run = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  nlohmann::json other = nlohmann::json::parse(schedule, nullptr, /*allow_exceptions=*/false);
  if (!run.is_object() || other.is_discarded()) return text;
  run["schedule"] = std::move(other);
  return run.dump();
}

absl::StatusOr<std::shared_ptr<const RunPlan>> PlanRun(const RunSpec& run, RunSchedule schedule) {
  if (absl::Status fits = CheckRunNetwork(run, schedule.scheme.ranks); !fits.ok()) return fits;
  const CheckpointSpec& checkpoint = run.checkpoint;
  auto plan = MakeRunPlan(run.name, ToText(run.schedule), std::move(schedule), run.end_step(),
                          run.first_step(), ReductionOf(run.schedule),
                          {checkpoint.every_steps, int64_t{checkpoint.every_seconds} * 1'000'000'000,
                           checkpoint.keep, run.validate.every, checkpoint.none},
                          std::make_shared<const RunSpec>(run));
  if (!plan.ok()) return plan;
  auto restartable = std::make_shared<RunPlan>(**plan);
  restartable->restarts = run.restarts;
  restartable->redundancy = run.redundancy;
  restartable->process_settings = ToText(ProcessSettingsOf(run));
  const auto ns = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
  restartable->job_timeout = {run.job_timeout.times, ns(run.job_timeout.at_least), ns(run.job_timeout.first)};
  restartable->resumed_spec = [spec = restartable->spec](const std::string& folder, int32_t step) {
    RunSpec resumed = *spec;
    resumed.resume = {folder, step, /*copies=*/folder.empty()};
    return ToJson(resumed).dump();
  };
  return restartable;
}

}  // namespace weft
