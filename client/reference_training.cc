#include "client/reference_training.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/progress.h"
#include "client/step_log.h"
#include "client/train_results.h"
#include "client/worker_task.h"

namespace weft {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class ReferenceTraining {
 public:
  explicit ReferenceTraining(const LocalTrainingOptions& options)
      : options_(options), log_(options.out), progress_(ProgressWanted()) {}

  ExitCode Run() {
    std::vector<std::string> arguments = options_.device.Arguments();
    arguments.insert(arguments.end(), {"--out", options_.out});
    const absl::Status started = task_.Start("--reference", options_.spec, arguments);
    if (!started.ok()) return Fail(kExitFailed, started.message());
    const absl::Status ended = task_.Watch([this](const nlohmann::json& line) { return TakeStep(line); },
                                           [this] { ShowProgress(); });
    progress_.Clear();
    if (ended.code() == absl::StatusCode::kCancelled) {
      return Fail(kExitInterrupted, absl::StrCat(ended.message(), " after ", Steps()));
    }
    if (!ended.ok()) return Failed(ended);
    return Finished();
  }

 private:
  // "3 of 10 steps"
  std::string Steps() const {
    return absl::StrCat(log_.seconds().size(), " of ", options_.spec.train.steps, " steps");
  }

  // Each line of the loop's output is one step.
  absl::Status TakeStep(const nlohmann::json& line) {
    const auto number = [&](const char* key) { return line.contains(key) && line[key].is_number(); };
    if (!number("step") || !number("seconds"))
      return absl::InternalError("weft-worker wrote a line that is no step");
    StepRecord step;
    step.step = line["step"];
    // A loss that is no finite number is null in JSON.
    step.has_loss = number("loss");
    if (step.has_loss) step.loss = line["loss"];
    if (number("gradient_norm")) step.gradient_norm = line["gradient_norm"];
    step.seconds = line["seconds"];
    step.end_seconds = log_.end_seconds() + step.seconds;
    return log_.Append(step);
  }

  void ShowProgress() {
    if (const std::string device = task_.TakeDevice(); !device.empty()) {
      progress_.Clear();
      PrintMessage(device);
    }
    ProgressState state{options_.spec.name, "the reference starts", options_.spec.train.steps};
    state.steps_done = static_cast<int>(log_.seconds().size());
    state.loss = log_.last_loss();
    state.has_loss = state.steps_done > 0;
    progress_.Show(Now(), state);
  }

  ExitCode Failed(const absl::Status& status) {
    task_.PrintLastWords();
    PrintMessage(absl::StrCat("the reference failed after ", Steps(), ": ", status.message()));
    return task_.code() == kExitBadConfiguration ? kExitBadConfiguration : kExitFailed;
  }

  ExitCode Finished() {
    TrainResults results;
    results.spec = options_.spec;
    results.reference = true;
    results.step_seconds = log_.seconds();
    results.first_loss = log_.first_loss();
    results.final_loss = log_.last_loss();
    results.seconds = log_.end_seconds();
    const absl::Status written = WriteResults(results, options_.out);
    if (!written.ok()) return Fail(kExitFailed, written.message());
    return PrintData(SummaryText(results, options_.shown));
  }

  const LocalTrainingOptions& options_;
  WorkerTask task_;
  StepLog log_;
  Progress progress_;
};

}  // namespace

ExitCode TrainReference(const LocalTrainingOptions& options) { return ReferenceTraining(options).Run(); }

}  // namespace weft
