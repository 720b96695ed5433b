#include "client/commands/eval_command.h"

#include <signal.h>

#include <cmath>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/commands/checkpoint_command.h"
#include "client/files/absolute_path.h"
#include "client/files/run_file.h"
#include "client/training/run_data.h"
#include "client/training/worker_task.h"
#include "coordinator/record/run_view.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// Returns the data that the flags name instead of the run file's; null without such flags.
Json OtherData(const EvalOptions& options) {
  if (!options.images.empty()) {
    return {{"idx", {{"images", AbsolutePath(options.images)}, {"labels", AbsolutePath(options.labels)}}}};
  }
  if (!options.cifar10.empty()) return {{"cifar10", {{"path", AbsolutePath(options.cifar10)}}}};
  if (!options.text.empty()) return {{"text", {{"path", AbsolutePath(options.text)}}}};
  Json arrays;
  for (const std::string& array : options.arrays) {
    const std::pair<std::string, std::string> field = absl::StrSplit(array, absl::MaxSplits('=', 1));
    arrays[field.first] = AbsolutePath(field.second);
  }
  if (!arrays.is_null()) return {{"arrays", arrays}};
  return nullptr;
}

absl::StatusOr<RunSpec> ReadRun(const EvalOptions& options) {
  const Json data = OtherData(options);
  auto file = ReadRunFile(options.file, data.is_null() ? RunFileData::kReadable : RunFileData::kIgnored);
  if (file.ok() && options.validation && !file->validate.any())
    return absl::InvalidArgumentError(absl::StrCat(options.file, ": has no section `validate`"));
  if (!file.ok() || data.is_null()) return file;
  Json run = ToJson(*file);
  // For an exported model, another text has the form of the run file's, and fills the same fields. For a gpt
  // it is read byte by byte.
  Json kept = Json::object();
  const bool exported = std::holds_alternative<ExportedSpec>(file->model);
  if (exported && run["data"].contains("text") && data.contains("text")) kept["text"] = run["data"]["text"];
  kept.merge_patch(data);
  run["data"] = kept;
  return ParseRunSpec(run);
}

// Checks the data of the run file, or of the flags that replace them.
absl::Status CheckEvalData(const EvalOptions& options, const RunSpec& spec) {
  if (absl::Status can = CheckEvaluable(spec.model); !can.ok()) return can;
  if (absl::Status fits = CheckGraphs(options.file, spec); !fits.ok()) return fits;
  if (!options.images.empty()) return CheckFlaggedData("--data-images, --data-labels", spec);
  if (!options.cifar10.empty()) return CheckFlaggedData("--data-cifar10", spec);
  if (!options.text.empty()) return CheckFlaggedData("--data-text", spec);
  if (!options.arrays.empty()) return CheckFlaggedData("--data-arrays", spec);
  if (options.validation) return CheckHeldOutData(options.file, spec);
  return CheckTrainingData(options.file, spec);
}

// Shows one line that renews itself, on a terminal.
class BatchCounter {
 public:
  explicit BatchCounter(bool terminal) : terminal_(terminal) {}
  void Show(const Json& line) {
    if (!terminal_ || line.is_null()) return;
    absl::FPrintF(stderr, "\r\x1b[Kevaluating: %d of %d samples", line.value("samples", int64_t{0}),
                  line.value("all_samples", int64_t{0}));
    shown_ = true;
  }
  void Clear() {
    if (shown_) absl::FPrintF(stderr, "\r\x1b[K");
  }

 private:
  const bool terminal_;
  bool shown_ = false;
};

// Returns a number of the result, which JSON has as null where it is none.
double NumberOf(const Json& value) { return value.is_number() ? value.get<double>() : std::nan(""); }

std::string Table(const Json& result, const std::string& checkpoint) {
  const bool built_in = result.contains("predictions");
  std::string table =
      absl::StrFormat("checkpoint  %s (version %s)\nsamples     %d\n", checkpoint,
                      result.value("version", std::string("?")), result.value("samples", int64_t{0}));
  if (built_in) absl::StrAppendFormat(&table, "predictions %d\n", result.value("predictions", int64_t{0}));
  absl::StrAppendFormat(&table, "%-11s %.6g\n", "loss", NumberOf(result["loss"]));
  for (const auto& [name, value] : result["metrics"].items()) {
    absl::StrAppendFormat(&table, "%-11s %s", name, MetricText(NumberOf(value)));
    if (built_in) absl::StrAppendFormat(&table, " (%d correct)", result.value("correct", int64_t{0}));
    absl::StrAppend(&table, "\n");
  }
  return table;
}

ExitCode ReportEvaluation(Json result, const RunSpec& spec, const std::string& checkpoint, bool json) {
  if (!json) return PrintData(Table(result, checkpoint));
  result.erase("all_samples");
  result.update(Json(result["metrics"]));
  result.erase("metrics");
  int64_t version = 0;
  if (absl::SimpleAtoi(result.value("version", std::string()), &version)) result["version"] = version;
  result["name"] = spec.name;
  result["checkpoint"] = checkpoint;
  return PrintJson(result);
}

// JSON has no number for what is not finite, and such a loss is no measure of anything.
void WarnOfLoss(const Json& result, const std::string& checkpoint) {
  if (result["loss"].is_number()) return;
  PrintMessage(absl::StrCat("the loss is not a finite number: the weights of ", checkpoint,
                            " are not finite, or too large for the model to compute with"));
}

}  // namespace

ExitCode RunEval(const EvalOptions& options) {
  if (options.images.empty() != options.labels.empty()) {
    return Fail(kExitUsage, "--data-images and --data-labels go together");
  }
  if (!options.images.empty() + !options.cifar10.empty() + !options.text.empty() + !options.arrays.empty() +
          options.validation >
      1) {
    return Fail(
        kExitUsage,
        "--data-images, --data-cifar10, --data-text, --data-arrays and --validation exclude one another");
  }
  const auto spec = ReadRun(options);
  if (!spec.ok()) return Fail(kExitBadConfiguration, spec.status().message());
  if (const absl::Status data = CheckEvalData(options, *spec); !data.ok()) {
    return Fail(kExitBadConfiguration, data.message());
  }
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  const std::string folder =
      options.checkpoint.empty() ? absl::StrCat("out/", spec->name) : options.checkpoint;
  const auto found = CheckpointToRead(folder);
  if (!found.ok()) return Fail(kExitBadConfiguration, found.status().message());
  const std::string& checkpoint = *found;
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the worker must still be ended
  WorkerTask task;
  std::vector<std::string> arguments = options.device.Arguments();
  arguments.insert(arguments.end(), {"--checkpoint", AbsolutePath(checkpoint)});
  const int64_t samples =
      options.samples == 0 && options.validation ? spec->validate.samples : options.samples;
  arguments.insert(arguments.end(), {"--samples", absl::StrCat(samples)});
  const RunSpec evaluated = options.validation ? ValidationRun(*spec) : *spec;
  const absl::Status started = task.Start("--evaluate", evaluated, arguments);
  if (!started.ok()) return Fail(kExitFailed, started.message());
  Json latest;
  BatchCounter counter(ProgressWanted());
  const absl::Status ended = task.Watch(
      [&](const Json& line) {
        latest = line;
        return absl::OkStatus();
      },
      [&] {
        if (const std::string device = task.TakeDevice(); !device.empty()) PrintMessage(device);
        counter.Show(latest);
      });
  counter.Clear();
  if (ended.code() == absl::StatusCode::kCancelled) return Fail(kExitInterrupted, ended.message());
  if (!ended.ok()) {
    task.PrintLastWords();
    PrintMessage(absl::StrCat("the evaluation failed: ", ended.message()));
    return task.code() == kExitBadConfiguration ? kExitBadConfiguration : kExitFailed;
  }
  if (!latest.is_object() || !latest.contains("loss") || latest["samples"] != latest["all_samples"]) {
    return Fail(kExitFailed, "weft-worker ended without a result");
  }
  WarnOfLoss(latest, checkpoint);
  return ReportEvaluation(latest, *spec, checkpoint, options.json);
}

}  // namespace weft
