// What a training leaves behind: the files of --out and the summary on standard output
// (docs/guide/outputs.md).
//
// The functions that make texts are pure; WriteResults writes each file aside and renames it, so that a
// reader never sees half a file.
#ifndef WEFT_CLIENT_TRAIN_RESULTS_H_
#define WEFT_CLIENT_TRAIN_RESULTS_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/run_recorder.h"
#include "nlohmann/json.hpp"
#include "proto/run/run_spec.h"
#include "proto/session/messages.h"
#include "schedules/drawing.h"
#include "schedules/schedule.h"

namespace weft {

struct TrainResults {
  RunSpec spec;
  bool reference = false;  // one plain loop: no ranks, jobs or reports
  int ranks = 1, processes = 1;
  std::vector<double> step_seconds;  // of each step
  double first_loss = 0, final_loss = 0;
  double seconds = 0;                 // from the start of the first job to the end of the last step
  double predicted_step_seconds = 0;  // see PredictStepSeconds
  std::vector<RankReport> reports;    // by rank
  std::string reduction;              // how gradients were summed (RunInfo)
  std::vector<DrawnJob> jobs;         // of the last steps, in seconds
};

// The smallest of the values that at least `share` of them do not exceed; 0 for none.
double Percentile(std::vector<double> values, double share);

// The time per step that the simulator predicts from the durations of each kind and stage, without transfers.
absl::StatusOr<double> PredictStepSeconds(const Schedule& schedule, int steps,
                                          const std::array<std::vector<double>, kJobKinds>& durations);

// One line of steps.jsonl, without its end.
std::string StepLine(const StepRecord& step);

nlohmann::ordered_json SummaryJson(const TrainResults& results);

// For people: loss, times, what each rank did, the last step as a picture, where to look next.
std::string SummaryText(const TrainResults& results, const std::string& folder);

// If `resume` is of the folder's own checkpoint, which the training will replace: gives it the name
// `checkpoint-STEP` there, in place of an older one, and changes `resume`. InvalidArgument if that cannot be
// done.
absl::Status KeepCheckpoint(const std::string& folder, ResumeSpec* resume);

// Makes the folder, and removes from it the files of an earlier training: all that WriteResults, the step log
// and the checkpoints are made of, and nothing else. InvalidArgument with the folder's name if that cannot be
// done.
absl::Status PrepareFolder(const std::string& folder);

// summary.json and, unless it is a reference, trace.json, timeline.svg and actions.csv. Unavailable with the
// file's name.
absl::Status WriteResults(const TrainResults& results, const std::string& folder);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAIN_RESULTS_H_
