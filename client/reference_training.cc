#include "client/reference_training.h"

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/child_process.h"
#include "client/progress.h"
#include "client/scratch_folder.h"
#include "client/step_log.h"
#include "client/stop_signals.h"
#include "client/train_results.h"

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
    const absl::Status started = Start();
    if (!started.ok()) return Fail(kExitFailed, started.message());
    const absl::Status ended = Watch();
    progress_.Clear();
    if (ended.code() == absl::StatusCode::kCancelled) return Fail(kExitInterrupted, ended.message());
    if (!ended.ok()) return Failed(ended);
    return Finished();
  }

 private:
  absl::Status Start() {
    const auto program = SiblingProgram("weft-worker");
    if (!program.ok()) return program.status();
    auto scratch = ScratchFolder::Make();
    if (!scratch.ok()) return scratch.status();
    scratch_ = *std::move(scratch);
    const std::string file = *scratch_ / "spec.json";
    if (!(std::ofstream(file) << ToJson(options_.spec).dump() << std::flush)) {
      return absl::UnavailableError(absl::StrCat("cannot write ", file));
    }
    auto process = ChildProcess::Start({*program, "--reference", file, "--out", options_.out},
                                       ChildProcess::Output::kCaptured);
    if (!process.ok()) return process.status();
    process_ = *std::move(process);
    return absl::OkStatus();
  }

  // Until the loop's process ends. Cancelled for a stop signal, which ends it.
  absl::Status Watch() {
    while (!process_->ended()) {
      std::vector<pollfd> descriptors = {{signals_.descriptor(), POLLIN, 0}};
      process_->AddTo(&descriptors);
      poll(descriptors.data(), descriptors.size(), 250);
      const int signal = signals_.Take();
      if (signal != 0) {
        process_->Signal(SIGKILL);
        return absl::CancelledError(absl::StrCat("stopped by SIG", sigabbrev_np(signal), " after ",
                                                 log_.seconds().size(), " of ", options_.spec.train.steps,
                                                 " steps"));
      }
      process_->Poll();
      const absl::Status taken = TakeSteps();
      if (!taken.ok()) return taken;
      ProgressState state{options_.spec.name, "the reference starts", options_.spec.train.steps};
      state.steps_done = static_cast<int>(log_.seconds().size());
      state.loss = log_.last_loss();
      state.has_loss = state.steps_done > 0;
      progress_.Show(Now(), state);
    }
    return process_->succeeded() ? absl::OkStatus() : absl::InternalError(process_->Ending());
  }

  // Each line of its output is one step.
  absl::Status TakeSteps() {
    lines_ += process_->TakeOutput();
    for (size_t end = lines_.find('\n'); end != std::string::npos; end = lines_.find('\n')) {
      const auto line = nlohmann::json::parse(lines_.substr(0, end), nullptr, /*allow_exceptions=*/false);
      lines_.erase(0, end + 1);
      const auto number = [&](const char* key) {
        return line.is_object() && line.contains(key) && line[key].is_number();
      };
      if (!number("step") || !number("seconds"))
        return absl::InternalError("weft-worker wrote a line that is no step");
      StepRecord step;
      step.step = line["step"];
      // A loss that is no finite number is null in JSON.
      step.has_loss = number("loss");
      if (step.has_loss) step.loss = line["loss"];
      step.seconds = line["seconds"];
      step.end_seconds = log_.end_seconds() + step.seconds;
      const absl::Status logged = log_.Append(step);
      if (!logged.ok()) return logged;
    }
    return absl::OkStatus();
  }

  ExitCode Failed(const absl::Status& status) {
    process_->Poll();
    const std::string& words = process_->last_words();
    std::fwrite(words.data(), 1, words.size(), stderr);
    PrintMessage(absl::StrCat("the reference failed after ", log_.seconds().size(), " of ",
                              options_.spec.train.steps, " steps: ", status.message()));
    return process_->code() == kExitBadConfiguration ? kExitBadConfiguration : kExitFailed;
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
  StopSignals signals_;
  StepLog log_;
  Progress progress_;
  std::unique_ptr<ScratchFolder> scratch_;
  std::unique_ptr<ChildProcess> process_;
  std::string lines_;
};

}  // namespace

ExitCode TrainReference(const LocalTrainingOptions& options) { return ReferenceTraining(options).Run(); }

}  // namespace weft
