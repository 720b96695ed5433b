#include "client/commands/compare_measured.h"

#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/contestants.h"
#include "client/commands/measured_run.h"
#include "client/commands/measured_schedules.h"
#include "client/commands/measured_table.h"
#include "client/files/absolute_path.h"
#include "client/files/run_file.h"
#include "client/training/run_data.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "coordinator/record/idle_shares.h"
#include "run/run_schedule.h"

namespace weft {
namespace {

// Returns the schedule as a folder's name.
std::string FolderNameOf(absl::string_view schedule) {
  std::string name(schedule);
  for (char& c : name) c = absl::ascii_isalnum(c) || c == '_' ? c : '-';
  return name.substr(0, 120);
}

// Trains under one schedule; the row is complete but for its name. Cancelled for a stop signal.
absl::StatusOr<MeasuredRow> Measure(const RunSpec& run, const CompareOptions& options, int repeat,
                                    const TrainRun& train) {
  const auto schedule = CheckedScheduleOf(run);
  if (!schedule.ok()) return schedule.status();
  const std::string suffix = repeat == 0 ? "" : absl::StrCat(".repeat", repeat + 1);
  const int ranks = schedule->scheme.ranks;
  const bool one_each = options.fleet.wanted && options.processes == 0;
  const int processes = one_each ? ranks : std::min(options.processes, ranks);
  const auto measured = train(run, processes, absl::StrCat(FolderNameOf(ToText(run.schedule)), suffix));
  if (!measured.ok()) return measured.status();
  if (!measured->summary.is_object())
    return absl::FailedPreconditionError("the coordinator, of an older release, does not tell its figures");
  return RowOf(run, *schedule, *measured);
}

// Measures one schedule after another, all of them before any is repeated: a disturbance of the machine then
// meets one training of each. Cancelled for a stop signal.
absl::StatusOr<std::vector<MeasuredRow>> MeasureAll(const std::vector<Contestant>& contestants,
                                                    const CompareOptions& options, const TrainRun& train) {
  std::vector<std::vector<MeasuredRow>> repeats(contestants.size());
  std::vector<absl::Status> failed(contestants.size());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const std::string round =
        options.repeats == 1 ? "" : absl::StrFormat(", round %d of %d", repeat + 1, options.repeats);
    for (size_t i = 0; i < contestants.size(); ++i) {
      const Contestant& one = contestants[i];
      if (!failed[i].ok()) continue;
      PrintMessage(absl::StrFormat("%d of %d%s: %s", i + 1, contestants.size(), round, one.schedule));
      auto row = one.run.ok() ? Measure(*one.run, options, repeat, train)
                              : absl::StatusOr<MeasuredRow>(one.run.status());
      if (row.status().code() == absl::StatusCode::kCancelled) return row.status();
      failed[i] = row.status();
      if (row.ok()) repeats[i].push_back(*std::move(row));
    }
  }
  std::vector<MeasuredRow> rows;
  for (size_t i = 0; i < contestants.size(); ++i) {
    const bool ran = failed[i].ok();
    rows.push_back(ran ? MedianRow(std::move(repeats[i])) : MeasuredRow());
    rows.back().schedule = contestants[i].schedule;
    rows.back().chosen = contestants[i].chosen;
    rows.back().ran = ran;
    rows.back().reason = std::string(failed[i].message());
  }
  return rows;
}

// Trains by `train`, and prints the table.
ExitCode MeasureAndPrint(const RunSpec& run, const CompareOptions& options, const TrainRun& train) {
  const ContestantOptions asked = {options.schedules, options.ranks, options.stages};
  auto rows = MeasureAll(ContestantsToMeasure(run, asked), options, train);
  if (!rows.ok()) return EndMeasuring(rows.status());
  const bool shares_cores = !options.fleet.wanted && options.device.device == "cpu";
  const Measuring measuring = {SizesText(run, asked), options.steps,
                               options.repeats,       shares_cores ? CoresOfProcess() : 0,
                               options.fleet.wanted,  OutputStyle()};
  const ExitCode printed = options.json ? PrintJson(MeasuredJson(run, measuring, *rows))
                                        : PrintData(MeasuredTable(run, measuring, *rows));
  if (printed != kExitOk) return printed;
  const bool any = std::any_of(rows->begin(), rows->end(), [](const MeasuredRow& row) { return row.ran; });
  return any ? kExitOk : Fail(kExitFailed, "no schedule ran; the reasons are above");
}

ExitCode MeasureHere(const RunSpec& run, const CompareOptions& options, StopSignals* signals) {
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  if (const absl::Status data = CheckRunData(options.file, run); !data.ok())
    return Fail(kExitBadConfiguration, data.message());
  std::unique_ptr<ScratchFolder> scratch;
  std::string folder;
  if (!options.out.empty()) {
    folder = AbsolutePath(options.out);
  } else {
    auto made = ScratchFolder::Make();
    if (!made.ok()) return Fail(kExitFailed, made.status().message());
    scratch = *std::move(made);
    folder = *scratch / "runs";
  }
  return MeasureAndPrint(run, options, [&](const RunSpec& part, int processes, const std::string& name) {
    return TrainAndMeasure(part, processes, options.device, absl::StrCat(folder, "/", name), signals);
  });
}

ExitCode MeasureOnFleet(const RunSpec& run, const CompareOptions& options, StopSignals* signals) {
  const auto client = ConnectTo(options.fleet.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const auto train = [&](const RunSpec& part, int processes, const std::string&) {
    return TrainOnFleet(**client, part, processes, options.fleet.pool, signals);
  };
  return MeasureAndPrint(run, options, train);
}

}  // namespace

ExitCode RunMeasuredCompare(const CompareOptions& options) {
  const bool fleet = options.fleet.wanted;
  auto run = ReadRunFile(options.file, fleet ? RunFileData::kElsewhere : RunFileData::kReadable);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  const absl::Status cut = CheckStages(*run, {.stages = options.stages});
  if (!cut.ok()) return Fail(kExitUsage, cut.message());
  run->validate = {};  // its loss is the same under all
  run->replan = {};    // each is measured as it is
  if (options.out.empty()) run->checkpoint = {.none = true};
  run->train.steps = options.steps;
  if (options.memory > 0) run->memory = static_cast<int64_t>(std::min(options.memory, 1e18));
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the trainings must still be ended
  StopSignals signals;       // before any thread
  return fleet ? MeasureOnFleet(*run, options, &signals) : MeasureHere(*run, options, &signals);
}

}  // namespace weft
