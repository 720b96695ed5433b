#include "client/compare_measured.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/measured_run.h"
#include "client/measured_schedules.h"
#include "client/measured_table.h"
#include "client/run_file.h"
#include "client/scratch_folder.h"
#include "client/stop_signals.h"
#include "proto/run/run_schedule.h"
#include "schedules/candidates.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A schedule as it was asked for, and what that means, if anything.
struct Wanted {
  std::string text;
  absl::StatusOr<ScheduleSpec> spec;
};

// Those that were asked for, or the run file's own and what the sizes allow.
std::vector<Wanted> SchedulesToMeasure(const RunSpec& run, const CompareOptions& options) {
  std::vector<Wanted> wanted;
  for (const std::string& text : options.schedules) {
    for (const std::string& one : SplitSchedules(text)) {
      wanted.push_back({one, ParseScheduleText(one)});
      if (wanted.back().spec.ok()) wanted.back().spec->activations = run.schedule.activations;
    }
  }
  if (!wanted.empty()) return wanted;
  wanted.push_back({ToText(run.schedule), run.schedule});
  for (const Candidate& c : PlainCandidates(run.stages(), run.train.microbatches)) {
    RunSpec under = run;
    under.schedule.name = c.name;
    under.schedule.parameters = c.parameters;
    under.schedule.rule = c.rule;
    const std::string text = ToText(under.schedule);
    if (text != wanted[0].text && CheckedScheduleOf(under).ok()) wanted.push_back({text, under.schedule});
  }
  return wanted;
}

// As a folder's name.
std::string FolderOf(absl::string_view schedule) {
  std::string name(schedule);
  for (char& c : name) c = absl::ascii_isalnum(c) || c == '_' ? c : '-';
  return name.substr(0, 120);
}

// Trains under one schedule; the row is complete but for its name. Cancelled for a stop signal.
absl::StatusOr<MeasuredRow> Measure(const RunSpec& run, const CompareOptions& options,
                                    const std::string& folder, StopSignals* signals) {
  const auto schedule = CheckedScheduleOf(run);
  if (!schedule.ok()) return schedule.status();
  const std::string out = absl::StrCat(folder, "/", FolderOf(ToText(run.schedule)));
  const auto measured =
      TrainAndMeasure(run, std::min(options.processes, schedule->ranks), options.device, out, signals);
  if (options.out.empty()) {
    std::error_code ignored;
    fs::remove_all(out, ignored);  // the weights of many runs are much
  }
  if (!measured.ok()) return measured.status();
  return RowOf(run, *measured);
}

// One after another. Cancelled for a stop signal.
absl::StatusOr<std::vector<MeasuredRow>> MeasureAll(const RunSpec& run, const CompareOptions& options,
                                                    const std::string& folder, StopSignals* signals) {
  const std::vector<Wanted> wanted = SchedulesToMeasure(run, options);
  std::vector<MeasuredRow> rows;
  for (size_t i = 0; i < wanted.size(); ++i) {
    PrintMessage(absl::StrFormat("%d of %d: %s", i + 1, wanted.size(), wanted[i].text));
    RunSpec under = run;
    if (wanted[i].spec.ok()) under.schedule = *wanted[i].spec;
    absl::StatusOr<MeasuredRow> row = wanted[i].spec.ok()
                                          ? Measure(under, options, folder, signals)
                                          : absl::StatusOr<MeasuredRow>(wanted[i].spec.status());
    const absl::Status status = row.status();
    if (status.code() == absl::StatusCode::kCancelled) return status;
    rows.push_back(row.ok() ? *std::move(row) : MeasuredRow());
    rows.back().schedule = wanted[i].text;
    rows.back().chosen = wanted[i].text == ToText(run.schedule);
    rows.back().ran = status.ok();
    rows.back().reason = std::string(status.message());
  }
  return rows;
}

}  // namespace

ExitCode RunMeasuredCompare(const CompareOptions& options) {
  auto run = ReadRunFile(options.file);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  run->train.steps = options.steps;
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
  StopSignals signals;
  auto rows = MeasureAll(*run, options, folder, &signals);
  if (rows.status().code() == absl::StatusCode::kCancelled) {
    PrintMessage(rows.status().message());
    return kExitInterrupted;
  }
  if (!rows.ok()) return Fail(kExitFailed, rows.status().message());
  const ExitCode printed = PrintData(options.json ? MeasuredJson(*run, options.steps, *rows).dump(2) + "\n"
                                                  : MeasuredTable(*run, options.steps, *rows));
  if (printed != kExitOk) return printed;
  const bool any = std::any_of(rows->begin(), rows->end(), [](const MeasuredRow& row) { return row.ran; });
  return any ? kExitOk : Fail(kExitFailed, "no schedule ran; the reasons are above");
}

}  // namespace weft
