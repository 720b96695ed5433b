// What a training leaves behind: the files of --out and the summary on standard output
// (docs/guide/outputs.md).
//
// The functions that make texts are pure; the others write each file aside and rename it, so that a
// reader never sees half a file.
#ifndef WEFT_COORDINATOR_RECORD_TRAIN_RESULTS_H_
#define WEFT_COORDINATOR_RECORD_TRAIN_RESULTS_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/record/idle_shares.h"
#include "coordinator/record/run_recorder.h"
#include "nlohmann/json_fwd.hpp"
#include "proto/run/run_spec.h"
#include "proto/session/messages.h"
#include "schedules/drawing.h"
#include "schedules/schedule.h"

namespace weft {

// What the simulator says of a run, given its own durations.
struct Prediction {
  double step_seconds = 0;
  IdleShares idle;
};

struct TrainResults {
  RunSpec spec;
  bool reference = false;  // one plain loop: no ranks, jobs or reports
  int ranks = 1, processes = 1;
  std::vector<double> step_seconds;  // of each step
  double first_loss = 0, final_loss = 0;
  int skipped_steps = 0;  // of these (train.non_finite: skip)
  double seconds = 0;     // from the start of the first job to the end of the last step
  Prediction predicted;
  std::vector<RankReport> reports;  // by rank
  std::string reduction;            // how gradients were summed (RunInfo)
  std::vector<DrawnJob> jobs;       // of the last steps, in seconds
  // What was told of the time of these jobs: when ranks were idle, and what was on its way between processes.
  std::vector<IdleInterval> idle;
  std::vector<TransferInterval> transfers;
  int cores = 0;  // that the processes could use; 0 where that says nothing
};

// The smallest of the values that at least `share` of them do not exceed; 0 for none.
double Percentile(std::vector<double> values, double share);

// The time per step, and the idle time, that the simulator predicts from the durations of each kind and
// stage, without transfers.
absl::StatusOr<Prediction> PredictionFrom(const Schedule& schedule, int steps,
                                          const std::array<std::vector<double>, kJobKinds>& durations);

// One line of steps.jsonl, without its end.
std::string StepLine(const StepRecord& step);

nlohmann::ordered_json SummaryJson(const TrainResults& results);

// For people: loss, times, what each rank did, the last step as a picture, where to look next.
std::string SummaryText(const TrainResults& results, const std::string& folder, const TextStyle& style = {});

// If `resume` is of the folder's own checkpoint, which the training will replace: gives it the name
// `checkpoint-STEP` there, in place of an older one, and changes `resume`. InvalidArgument if that cannot be
// done.
absl::Status KeepCheckpoint(const std::string& folder, ResumeSpec* resume);

// How far a run has come, for a person: "3 of 10 steps", and from where on if it goes on from a checkpoint.
std::string StepsMade(const RunSpec& spec, size_t steps);

// summary.json. Unavailable with the file's name.
absl::Status WriteSummary(const TrainResults& results, const std::string& folder);

// loss.svg from the folder's steps.jsonl and, unless it is a reference, actions.csv, timeline.svg and
// trace.json, of which the last is the largest. A sentence for each that cannot be written.
std::vector<std::string> WriteTraces(const TrainResults& results, const std::string& folder);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_TRAIN_RESULTS_H_
