#include "client/training/reference_training.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "client/console/progress.h"
#include "client/training/training_end.h"
#include "client/training/worker_task.h"
#include "coordinator/record/hash_log.h"
#include "coordinator/record/run_end.h"
#include "coordinator/record/step_log.h"
#include "coordinator/record/train_results.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

class ReferenceTraining {
 public:
  explicit ReferenceTraining(const LocalTrainingOptions& options)
      : options_(options),
        log_(options.output->live(), options.run.spec.first_step(), options.run.spec.train.non_finite,
             EventTermsOf(options.run.spec)),
        hashes_(options.output->live(), options.run.spec),
        progress_(ProgressWanted()) {}

  ExitCode Run() {
    std::vector<std::string> arguments = options_.device.Arguments();
    arguments.insert(arguments.end(), {"--out", options_.output->live()});
    task_.StopBy([this] { return BeginStop(); });
    const absl::Status started = task_.Start("--reference", options_.run.spec, arguments);
    if (!started.ok()) {
      TellUnfinished(options_, Results(), "failed", std::string(started.message()), &log_);
      return Fail(kExitFailed, started.message());
    }
    const absl::Status ended = task_.Watch([this](const nlohmann::json& line) { return TakeStep(line); },
                                           [this] { ShowProgress(); });
    progress_.Clear();
    if (ended.code() == absl::StatusCode::kCancelled) {
      TellUnfinished(options_, Results(), "stopped", std::string(ended.message()), &log_);
      PrintMessage(absl::StrCat(ended.message(), " after ", Steps()));
      PrintCheckpoint();
      return kExitInterrupted;
    }
    if (!ended.ok()) return Failed(ended);
    return Finished();
  }

 private:
  std::string Steps() const { return StepsMade(options_.run.spec, log_.seconds().size()); }

  // Begins to stop: the loop saves between two steps.
  std::optional<double> BeginStop() {
    if (log_.seconds().empty()) return std::nullopt;
    progress_.Clear();
    const int made = options_.run.spec.first_step() + static_cast<int>(log_.seconds().size());
    PrintMessage(StoppingText(made + 1, options_.run.spec.end_step()));
    return StopSeconds(log_, 1);
  }

  void TakeCheckpoint(const nlohmann::json& line) {
    const int step = line["checkpoint"];
    const std::string failure = line.value("failure", std::string());
    if (failure.empty()) {
      checkpoint_ = step;
      return;
    }
    progress_.Clear();
    PrintMessage(absl::StrCat("the checkpoint of step ", step, " was not saved: ", failure));
  }

  void TakeValidation(const nlohmann::json& line) {
    Validation validation;
    validation.step = line["validation"];
    // JSON has null for numbers that are not finite.
    const auto number = [](const nlohmann::json& v) {
      return v.is_number() ? v.get<double>() : std::nan("");
    };
    validation.loss = number(line["loss"]);
    for (const auto& [name, value] : line["metrics"].items()) validation.metrics[name] = number(value);
    validation.samples = validation.all_samples = line.value("samples", int64_t{0});
    Logged(log_.Append(validation));
  }

  void Logged(const absl::Status& logged) {
    if (logged.ok()) return;
    progress_.Clear();
    PrintMessage(absl::StrCat(logged.message(), "; the training goes on, and the lines are kept for later"));
  }

  // Takes the hashes of a job, a line of their file.
  void TakeHashes(const nlohmann::json& line) { Logged(hashes_.Append(line.dump())); }

  void PrintCheckpoint() {
    const std::string sentence = GoesOn(options_, checkpoint_);
    if (!sentence.empty()) PrintMessage(sentence);
  }

  // Takes a line of the loop's output: a step, a job's hashes, a checkpoint or a validation.
  absl::Status TakeStep(const nlohmann::json& line) {
    if (line.contains("checkpoint") && line["checkpoint"].is_number_integer()) {
      TakeCheckpoint(line);
      return absl::OkStatus();
    }
    if (line.contains("validation") && line["validation"].is_number_integer()) {
      TakeValidation(line);
      return absl::OkStatus();
    }
    if (line.contains("kind")) {
      TakeHashes(line);
      return absl::OkStatus();
    }
    const auto number = [&](const char* key) { return line.contains(key) && line[key].is_number(); };
    if (!number("step") || !number("seconds"))
      return absl::InternalError("weft-worker wrote a line that is not a step");
    StepRecord step;
    step.step = line["step"];
    // A number that is not finite is null in JSON.
    const auto value = [&](const char* key) { return number(key) ? line[key].get<double>() : std::nan(""); };
    step.has_loss = true;
    step.loss = value("loss");
    if (line.contains("gradient_norm")) step.gradient_norm = value("gradient_norm");
    step.seconds = line["seconds"];
    step.end_seconds = log_.end_seconds() + step.seconds;
    Logged(log_.Append(step));
    if (const std::string notice = log_.TakeNotice(); !notice.empty()) {
      progress_.Clear();
      PrintMessage(notice);
    }
    return absl::OkStatus();
  }

  void ShowProgress() {
    if (const std::string device = task_.TakeDevice(); !device.empty()) {
      progress_.Clear();
      PrintMessage(device);
    }
    ProgressState state{options_.run.spec.name, log_.seconds().empty() ? "the reference starts" : "",
                        options_.run.spec.end_step()};
    state.first_step = options_.run.spec.first_step();
    state.steps_done = state.first_step + static_cast<int>(log_.seconds().size());
    state.loss = log_.last_loss();
    state.has_loss = !log_.seconds().empty();
    state.validation = log_.validation();
    progress_.Show(MonotonicSeconds(), state);
  }

  ExitCode Failed(const absl::Status& status) {
    task_.PrintLastWords();
    TellUnfinished(options_, Results(), "failed", std::string(status.message()), &log_);
    PrintMessage(absl::StrCat("the reference failed after ", Steps(), ": ", status.message()));
    PrintCheckpoint();
    return task_.code() == kExitBadConfiguration ? kExitBadConfiguration : kExitFailed;
  }

  TrainResults Results() const {
    TrainResults results = ResultsOf(options_.run.spec, log_);
    results.reference = true;
    return results;
  }

  ExitCode Finished() {
    if (const std::string warning = log_.losses().Warning(); !warning.empty()) PrintMessage(warning);
    return TellResults(options_, Results(), &log_);
  }

  const LocalTrainingOptions& options_;
  WorkerTask task_;
  StepLog log_;
  HashLog hashes_;
  Progress progress_;
  int checkpoint_ = -1;  // step of the newest complete one
};

}  // namespace

ExitCode TrainReference(const LocalTrainingOptions& options) { return ReferenceTraining(options).Run(); }

}  // namespace weft
