// Writes the results of a training: the files of --out and the summary on standard output
// (docs/guide/outputs.md).
//
// The functions that make texts are pure; the others write each file aside and rename it, so that a reader
// never sees half a file.
#ifndef WEFT_COORDINATOR_RECORD_TRAIN_RESULTS_H_
#define WEFT_COORDINATOR_RECORD_TRAIN_RESULTS_H_

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/record/idle_shares.h"
#include "coordinator/record/run_recorder.h"
#include "nlohmann/json_fwd.hpp"
#include "proto/session/messages.h"
#include "proto/session/run_trace.h"
#include "run/run_spec.h"
#include "schedules/drawing/drawing.h"
#include "schedules/run_terms.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// The simulator's figures for a run, given its own durations.
struct Prediction {
  double step_seconds = 0;
  IdleShares idle;
  std::vector<DrawnJob> jobs;  // of its last steps
};

struct TrainResults {
  RunSpec spec;
  bool reference = false;  // true for one plain loop: no ranks, jobs or reports
  int ranks = 1, processes = 1;
  std::vector<double> step_seconds;  // seconds of each step
  double first_loss = 0, final_loss = 0;
  std::optional<Validation> validation;  // the last
  int restarts = 0;                      // times that the run began again: for a loss, or for other processes
  int non_finite_steps = 0;              // steps given up for a number that is not finite
  int skipped_steps = 0;                 // of these (train.non_finite: skip)
  double seconds = 0;                    // from the start of the first job to the end of the last step
  Prediction predicted;
  std::vector<RankReport> reports;  // by rank
  std::string reduction;            // how gradients were summed (RunInfo)
  std::vector<DrawnJob> jobs;       // jobs of the last steps, in seconds since the start of the first job
  int64_t first_start_unix_ns = 0;  // that start by the wall clock; 0 where it is not known
  // Reports about the time of these jobs: when ranks were idle, and which tensors were on their way between
  // processes.
  std::vector<IdleInterval> idle;
  std::vector<TransferInterval> transfers;
  int cores = 0;  // cores that the processes could use; 0 where their number says nothing
};

// Returns the smallest of the values that at least `share` of them do not exceed; 0 for none.
double Percentile(std::vector<double> values, double share);

// The mean durations of a run's jobs by kind and stage, in seconds.
using JobDurations = std::array<std::vector<double>, kJobKinds>;

// Returns the costs by which a run is predicted that took so long for its jobs. Transfers take no time, and
// ranks are equally fast, unless the run has a network. The durations are then those at its speeds.
SimulationOptions CostsOfRun(const RunSpec& spec, const RunSchedule& schedule, const JobDurations& durations);

// Predicts the time per step, and the idle time, with the simulator. Returns the jobs of the last `kept`
// steps with it, or of fewer where that is too much.
absl::StatusOr<Prediction> PredictionFrom(const RunSchedule& schedule, int steps, int kept,
                                          SimulationOptions costs);

// Returns the planned jobs as if they were those of the last measured steps: with their numbers, and in their
// time, from the start of the first of them on.
std::vector<DrawnJob> PlannedBeside(std::vector<DrawnJob> planned, const std::vector<DrawnJob>& measured);

// Returns trace.json: the jobs with the plan beside them, idle times and transfers. It needs the results that
// ResultsSoFar of run_end.h gives.
std::string TraceText(const TrainResults& results);

// Returns one line of steps.jsonl, without its end.
std::string StepLine(const StepRecord& step);
std::string ValidationLine(const Validation& validation);

nlohmann::ordered_json SummaryJson(const TrainResults& results);

// Returns the summary for people: loss, times, each rank's figures, the last step as a picture, where to look
// next.
std::string SummaryText(const TrainResults& results, const std::string& folder, const TextStyle& style = {},
                        const std::string& resume = "");

// Keeps the folder's own checkpoint, if `resume` is of it and the training will replace it: gives it the name
// `checkpoint-STEP` there, in place of an older one, and changes `resume`. InvalidArgument if that cannot be
// done.
absl::Status KeepCheckpoint(const std::string& folder, ResumeSpec* resume);

// Says how far a run has come, for a person: "3 of 10 steps", and from where on if it goes on from a
// checkpoint.
std::string StepsMade(const RunSpec& spec, size_t steps);

// Reads the trace that a run left in the folder. NotFound where it left none.
absl::StatusOr<RunTrace> ReadRunTrace(const std::string& folder);

// Writes summary.json. Unavailable with the file's name.
absl::Status WriteSummary(const TrainResults& results, const std::string& folder);

// Writes loss.svg from the folder's steps.jsonl and, unless it is a reference, actions.csv, timeline.svg and
// trace.json, of which the last is the largest. Returns a sentence for each that cannot be written.
std::vector<std::string> WriteTraces(const TrainResults& results, const std::string& folder);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_TRAIN_RESULTS_H_
