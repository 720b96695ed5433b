#include "client/commands/compare_measured.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
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
#include "client/files/run_file.h"
#include "client/training/run_data.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "coordinator/record/idle_shares.h"
#include "run/run_schedule.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Returns the schedule as a folder's name.
std::string FolderOf(absl::string_view schedule) {
  std::string name(schedule);
  for (char& c : name) c = absl::ascii_isalnum(c) || c == '_' ? c : '-';
  return name.substr(0, 120);
}

// Trains under one schedule; the row is complete but for its name. Cancelled for a stop signal.
absl::StatusOr<MeasuredRow> Measure(const RunSpec& run, const CompareOptions& options, int repeat,
                                    const std::string& folder, StopSignals* signals) {
  const auto schedule = CheckedScheduleOf(run);
  if (!schedule.ok()) return schedule.status();
  const std::string suffix = repeat == 0 ? "" : absl::StrCat(".repeat", repeat + 1);
  const std::string out = absl::StrCat(folder, "/", FolderOf(ToText(run.schedule)), suffix);
  const auto measured =
      TrainAndMeasure(run, std::min(options.processes, schedule->scheme.ranks), options.device, out, signals);
  if (!measured.ok()) return measured.status();
  return RowOf(run, *schedule, *measured);
}

// Measures one schedule after another, all of them before any is repeated: a disturbance of the machine then
// meets one training of each. Cancelled for a stop signal.
absl::StatusOr<std::vector<MeasuredRow>> MeasureAll(const std::vector<Contestant>& contestants,
                                                    const CompareOptions& options, const std::string& folder,
                                                    StopSignals* signals) {
  std::vector<std::vector<MeasuredRow>> repeats(contestants.size());
  std::vector<absl::Status> failed(contestants.size());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const std::string round =
        options.repeats == 1 ? "" : absl::StrFormat(", round %d of %d", repeat + 1, options.repeats);
    for (size_t i = 0; i < contestants.size(); ++i) {
      const Contestant& one = contestants[i];
      if (!failed[i].ok()) continue;
      PrintMessage(absl::StrFormat("%d of %d%s: %s", i + 1, contestants.size(), round, one.schedule));
      auto row = one.run.ok() ? Measure(*one.run, options, repeat, folder, signals)
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

}  // namespace

ExitCode RunMeasuredCompare(const CompareOptions& options) {
  auto run = ReadRunFile(options.file);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  run->validate = {};  // its loss is the same under all
  run->replan = {};    // each is measured as it is
  if (options.out.empty()) run->checkpoint = {.none = true};
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  if (const absl::Status data = CheckRunData(options.file, *run); !data.ok())
    return Fail(kExitBadConfiguration, data.message());
  run->train.steps = options.steps;
  if (options.memory > 0) run->memory = static_cast<int64_t>(std::min(options.memory, 1e18));
  const ContestantOptions asked = {options.schedules, options.ranks, options.stages};
  std::unique_ptr<ScratchFolder> scratch;
  std::string folder;
  if (!options.out.empty()) {
    folder = fs::absolute(options.out).lexically_normal().string();
  } else {
    auto made = ScratchFolder::Make();
    if (!made.ok()) return Fail(kExitFailed, made.status().message());
    scratch = *std::move(made);
    folder = *scratch / "runs";
  }
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the trainings must still be ended
  StopSignals signals;
  auto rows = MeasureAll(ContestantsToMeasure(*run, asked), options, folder, &signals);
  if (rows.status().code() == absl::StatusCode::kCancelled) {
    PrintMessage(rows.status().message());
    return kExitInterrupted;
  }
  if (!rows.ok()) return Fail(kExitFailed, rows.status().message());
  const Measuring measuring = {SizesText(*run, asked), options.steps, options.repeats,
                               options.device.device == "cpu" ? CoresOfProcess() : 0, OutputStyle()};
  const ExitCode printed = PrintData(options.json ? MeasuredJson(*run, measuring, *rows).dump(2) + "\n"
                                                  : MeasuredTable(*run, measuring, *rows));
  if (printed != kExitOk) return printed;
  const bool any = std::any_of(rows->begin(), rows->end(), [](const MeasuredRow& row) { return row.ran; });
  return any ? kExitOk : Fail(kExitFailed, "no schedule ran; the reasons are above");
}

}  // namespace weft
