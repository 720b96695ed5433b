#include "client/commands/auto_plan.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/host_memory.h"
#include "client/commands/measured_run.h"
#include "client/commands/profile_command.h"
#include "client/files/measured_profile.h"
#include "client/files/schedule_file.h"
#include "client/planning/make_plan.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int kProfiledSteps = 6;

// Returns the bytes that a rank's micro-batch has in the host's memory beside the rank's own.
int64_t OffloadedBytes(const RunSpec& run) {
  const std::vector<StageMemory> stages = CountStages(run);
  int64_t bytes = 0;
  for (int s = 0; s < run.stages(); ++s)
    bytes += ActivationsOf(run, s) == ActivationPolicy::kOffload ? stages[s].offloaded : 0;
  return bytes;
}

// Returns OK if each rank has room for all layers: within the run's budget, and within its share of the
// host's memory where the ranks compute there.
absl::Status CheckRoom(const RunSpec& run, const RunSpec& together, int ranks, const DeviceFlags& device) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  RunSpec limited = together;
  limited.memory = run.memory > 0 ? run.memory : kNoLimit;
  const HostMemory host = ReadHostMemory();
  if (device.device == "cpu" && host.Least().has_value()) {
    const int64_t share = *host.Least() / ranks - OffloadedBytes(together);
    limited.memory = std::clamp<int64_t>(share, 1, limited.memory);
  }
  if (limited.memory == kNoLimit) return absl::OkStatus();
  const absl::Status fits = CheckedScheduleOf(limited).status();
  if (fits.ok() || limited.memory == run.memory) return fits;
  return absl::ResourceExhaustedError(absl::StrCat("there are ", host.Describe(), ": ", fits.message()));
}

// Gives the profile the times of jobs beside which the other ranks compute, and returns how many ranks were
// busy. If that cannot be measured, it says why, and the times stay those of one rank. Cancelled for a stop
// signal.
absl::StatusOr<int> MeasureTogether(const RunSpec& run, const PlannedRanks& planned_for,
                                    const DeviceFlags& device, const std::string& folder,
                                    StopSignals* signals, nlohmann::ordered_json* profile) {
  const auto [ranks, processes] = planned_for;
  if (ranks < 2) return 1;
  const RunSpec together = SpeedProfilingRun(run, kProfiledSteps, ranks);
  absl::Status measured = CheckRoom(run, together, ranks, device);
  if (measured.ok()) {
    const auto slowed = TrainAndMeasure(together, processes, device, folder, signals);
    // Processes of one machine have no lasting speeds of their own.
    if (slowed.ok()) SlowToTogether(together, slowed->trace, profile);
    measured = slowed.status();
  }
  if (measured.ok()) return ranks;
  if (absl::IsCancelled(measured)) return measured;
  PrintMessage(absl::StrCat("the plan is made with the times of one rank alone; ", ranks,
                            " ranks with all layers each could not be measured: ", measured.message()));
  return 1;
}

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
  const auto busy = MeasureTogether(run, planned_for, device, **scratch / "together", &signals, &profile);
  if (!busy.ok()) return busy.status();
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
  auto report = MakePlan(*source, *wanted, {planned_for.ranks, asked.time_limit, asked.microbatches});
  // The budget is the run file's own.
  if (absl::IsResourceExhausted(report.status()))
    return absl::InvalidArgumentError(absl::StrCat(file, ": memory: ", report.status().message()));
  if (!report.ok()) return report.status();
  report->profile = kKeptProfile;
  report->timed_ranks = *busy;
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
