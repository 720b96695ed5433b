#include "client/training/training_end.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/record/run_end.h"
#include "nlohmann/json.hpp"
#include "worker/shell/checkpoint/checkpoint_folders.h"

namespace weft {
namespace {

// Returns the command that goes on from the newest checkpoint in the folder, in the same folder.
std::string ResumeCommand(const LocalTrainingOptions& options) {
  const std::string& folder = options.output->shown();
  const bool by_default = folder == absl::StrCat("out/", options.run.spec.name);
  return absl::StrCat("weft train ", options.file, by_default ? "" : absl::StrCat(" --out ", folder),
                      options.reference ? " --reference" : "", " --resume ", folder);
}

// Returns the summary as the folder's summary.json has it, and the folder.
nlohmann::ordered_json ResultsJson(const TrainResults& results, const std::string& folder) {
  nlohmann::ordered_json json = {{"out", folder}};
  json.update(SummaryJson(results));
  return json;
}

}  // namespace

ExitCode TellResults(const LocalTrainingOptions& options, const TrainResults& results, StepLog* log) {
  const EndedRun ended_run =
      LeaveResults(results, RecordOf(results.spec, options.file, "finished", results.step_seconds.size()),
                   options.output, log);
  for (const std::string& sentence : ended_run.lost) PrintMessage(sentence);
  if (ended_run.folder_gone) return Fail(kExitFailed, ended_run.status.message());
  const std::string& folder = options.output->shown();
  const ExitCode printed =
      options.json ? PrintJson(ResultsJson(results, folder))
                   : PrintData(SummaryText(results, folder, OutputStyle(), ResumeCommand(options)));
  if (!ended_run.status.ok()) return Fail(kExitFailed, ended_run.status.message());
  if (!ended_run.lost.empty())
    PrintMessage("the checkpoint and summary.json are whole; the files above are missing or not whole");
  return printed;
}

std::string GoesOn(const LocalTrainingOptions& options, int step) {
  if (step < 1) return "";
  return absl::StrCat("the checkpoint of step ", step, " is complete; `", ResumeCommand(options),
                      "` goes on from it");
}

double StopSeconds(const StepLog& log, int steps_remaining) {
  constexpr size_t kRecent = 8;
  const std::vector<double>& seconds = log.seconds();
  const size_t count = std::min(kRecent, seconds.size());
  const double sum = std::accumulate(seconds.end() - static_cast<std::ptrdiff_t>(count), seconds.end(), 0.0);
  const double step = count == 0 ? 0 : sum / static_cast<double>(count);
  return 10 + 3 * step * std::max(1, steps_remaining);
}

std::string StoppingText(int step, int end_step) {
  if (step >= end_step)
    return "stopping: the training is about to end by itself; press Ctrl-C again to stop at once";
  return absl::StrCat("stopping: saving a checkpoint after step ", step,
                      "; press Ctrl-C again to stop at once");
}

void TellUnfinished(const LocalTrainingOptions& options, const TrainResults& so_far, const std::string& state,
                    const std::string& reason, StepLog* log) {
  SweepPartialCheckpoints(options.output->live());  // nobody writes there any more
  const UnfinishedRun left = LeaveUnfinished(
      so_far, RecordOf(so_far.spec, options.file, state, log->seconds().size(), reason), options.output, log);
  if (!left.message.empty()) PrintMessage(left.message);
}

}  // namespace weft
