#include "client/commands/diff_command.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/diff/diff_report.h"
#include "client/diff/folder_diff.h"
#include "client/diff/hash_file.h"
#include "client/diff/run_diff.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

absl::Status CheckFolder(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, " is no folder; give the output folders of two runs, as out/first"));
}

absl::Status NotOfOneTraining(const DiffOptions& options) {
  return absl::InvalidArgumentError(absl::StrCat(
      options.a, " and ", options.b,
      " are not runs of the same training: model, data, train, stages, precision or rule differ, so their "
      "numbers do too; see `run` in their summary.json"));
}

// Returns what both runs train, from one of them; and its TrainingId.
absl::StatusOr<std::pair<DiffTraining, std::string>> TrainingOf(const RunSpec& spec) {
  const absl::StatusOr<ScheduledRun> run = ScheduledRun::Make(spec);
  if (!run.ok()) return run.status();
  DiffTraining training;
  training.stages = spec.stages();
  training.microbatches = spec.train.microbatches;
  training.inputs = run->schedule->terms.inputs;
  if (training.inputs.empty()) {
    training.inputs.resize(training.stages);
    for (int stage = 1; stage < training.stages; ++stage) training.inputs[stage] = {stage - 1};
  }
  const std::vector<StateRule> rules = StateRulesOf(*run);
  for (const StateRule& rule : rules) training.staleness.push_back(rule.staleness);
  return std::pair(std::move(training), rules.front().training);
}

ExitCode PrintDiff(const DiffOptions& options, bool equal, const std::string& text,
                   const nlohmann::ordered_json& json) {
  const ExitCode printed = options.json ? PrintJson(json) : PrintData(text);
  return printed != kExitOk || equal ? printed : kExitFailed;
}

void WarnOfDamage(const std::string& folder, const HashFile& file) {
  if (file.damaged_lines == 0) return;
  PrintMessage(absl::StrCat(folder, "/hashes.jsonl: ", file.damaged_lines,
                            " lines cannot be read and are passed over"));
}

ExitCode DiffHashes(const DiffOptions& options, const HashFile& a, const HashFile& b) {
  WarnOfDamage(options.a, a);
  WarnOfDamage(options.b, b);
  const auto of_a = TrainingOf(a.run), of_b = TrainingOf(b.run);
  if (!of_a.ok()) return Fail(kExitBadConfiguration, absl::StrCat(options.a, ": ", of_a.status().message()));
  if (!of_b.ok()) return Fail(kExitBadConfiguration, absl::StrCat(options.b, ": ", of_b.status().message()));
  if (of_a->second != of_b->second) return Fail(kExitBadConfiguration, NotOfOneTraining(options).message());
  const RunDiff diff = DiffRuns(of_a->first, a.hashes, b.hashes);
  if (diff.values == 0) {
    return Fail(
        kExitBadConfiguration,
        absl::StrCat(options.a, " and ", options.b,
                     " have recorded no value in common: they made different steps, or on a device whose "
                     "values are not hashed"));
  }
  const DiffNames names{options.a, options.b};
  return PrintDiff(options, diff.equal(), DiffText(diff, names, OutputStyle().width), DiffJson(diff, names));
}

ExitCode DiffFolders(const DiffOptions& options) {
  const auto a = ReadTraces(options.a), b = ReadTraces(options.b);
  if (!a.ok()) return Fail(kExitBadConfiguration, a.status().message());
  if (!b.ok()) return Fail(kExitBadConfiguration, b.status().message());
  if (!a->training.empty() && !b->training.empty() && a->training != b->training)
    return Fail(kExitBadConfiguration, NotOfOneTraining(options).message());
  const FolderDiff diff = DiffTraces(*a, *b);
  if (diff.losses + diff.checkpoints == 0) {
    return Fail(kExitBadConfiguration, absl::StrCat(options.a, " and ", options.b,
                                                    " have neither a step nor a checkpoint in common; ",
                                                    "train both with --record hashes"));
  }
  const DiffNames names{options.a, options.b};
  return PrintDiff(options, diff.equal(), FolderDiffText(diff, names), FolderDiffJson(diff, names));
}

}  // namespace

ExitCode RunDiffCommand(const DiffOptions& options) {
  for (const std::string& folder : {options.a, options.b}) {
    if (const absl::Status there = CheckFolder(folder); !there.ok())
      return Fail(kExitBadConfiguration, there.message());
  }
  const auto a = ReadHashes(options.a), b = ReadHashes(options.b);
  for (const auto* file : {&a, &b}) {
    if (!file->ok() && !absl::IsNotFound(file->status()))
      return Fail(kExitBadConfiguration, file->status().message());
  }
  return a.ok() && b.ok() ? DiffHashes(options, *a, *b) : DiffFolders(options);
}

}  // namespace weft
