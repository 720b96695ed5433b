#include "client/commands/auto_plan.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/commands/measured_run.h"
#include "client/commands/profile_command.h"
#include "client/files/measured_profile.h"
#include "client/files/schedule_file.h"
#include "client/planning/make_plan.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int kProfiledSteps = 6;

}  // namespace

absl::StatusOr<AutoPlan> PlanTraining(const std::string& file, const RunSpec& run, const AutoSchedule& asked,
                                      const PlannedRanks& planned_for, const DeviceFlags& device) {
  const auto scratch = ScratchFolder::Make();
  if (!scratch.ok()) return scratch.status();
  const RunSpec profiling = ProfilingRun(run, kProfiledSteps);
  StopSignals signals;
  const auto measured = TrainAndMeasure(profiling, 1, device, **scratch / "run", &signals);
  if (!measured.ok()) return measured.status();
  nlohmann::ordered_json profile = ProfileOf(profiling, measured->trace);
  const auto [ranks, processes] = planned_for;
  if (ranks > 1) {
    const RunSpec together = SpeedProfilingRun(run, kProfiledSteps, ranks);
    const auto slowed = TrainAndMeasure(together, processes, device, **scratch / "together", &signals);
    if (absl::IsCancelled(slowed.status())) return slowed.status();
    // Processes of one machine have no lasting speeds of their own.
    if (slowed.ok()) SlowToTogether(together, slowed->trace, &profile);
  }
  AutoPlan planned;
  planned.kept.profile = profile.dump(2) + "\n";
  PlanSourceOptions options;
  options.file = file;
  options.profile = **scratch / "profile.json";
  std::ofstream(options.profile) << planned.kept.profile;
  const auto source = PlanSourceOf(options, run);
  if (!source.ok()) return source.status();
  const auto wanted = ParseWantedPlan("auto");
  if (!wanted.ok()) return wanted.status();
  auto report = MakePlan(*source, *wanted, {ranks, asked.time_limit, asked.microbatches});
  if (!report.ok()) return report.status();
  report->profile = kKeptProfile;
  planned.line = PlanLine(*report);
  planned.kept.plan = PlanYaml(*report);
  auto keys = ParsePlan("plan.yaml", planned.kept.plan);
  if (!keys.ok()) return keys.status();
  planned.keys = *std::move(keys);
  return planned;
}

absl::StatusOr<nlohmann::json> PlanOfCheckpoint(const std::string& folder) {
  std::error_code error;
  fs::path at = fs::absolute(folder).lexically_normal();
  for (int above = 0; above < 3; ++above, at = at.parent_path()) {
    if (fs::exists(at / "plan.yaml", error)) return ReadPlan((at / "plan.yaml").string());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      folder, ": no training with a plan left this; a run goes on with its own cut, so give --plan"));
}

}  // namespace weft
