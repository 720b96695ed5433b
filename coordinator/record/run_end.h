// Ends a run in its output folder: writes its files in such an order that a full disk or a vanished folder
// costs what is easiest to make again.
//
// The checkpoint is there before (the workers write it); then summary.json, the steps that could not be
// written before, and the traces. It blocks on the disk: call it on a thread that nobody waits for.
#ifndef WEFT_COORDINATOR_RECORD_RUN_END_H_
#define WEFT_COORDINATOR_RECORD_RUN_END_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/record/output_folder.h"
#include "coordinator/record/run_recorder.h"
#include "coordinator/record/step_log.h"
#include "coordinator/record/train_results.h"
#include "run/run_spec.h"
#include "schedules/run_terms.h"

namespace weft {

// Returns the run as run.json has it. `spec` is the specification that its jobs followed last.
RunRecord RecordOf(const RunSpec& spec, const std::string& file, const std::string& state,
                   size_t steps_made = 0, const std::string& reason = "");

// Returns what can be told of the jobs of a run that goes on, of the steps that have ended: those figures of
// its results that do not come from its steps. Specification and schedule are those that it began with; those
// under which it went on last take their place.
TrainResults ResultsSoFar(const RunSpec& spec, const RunSchedule& schedule, const RunRecorder& recorder);

// Returns the trace of a run that goes on. FailedPrecondition before its first step has ended.
absl::StatusOr<RunTrace> TraceSoFar(const RunSpec& spec, const RunSchedule& schedule,
                                    const RunRecorder& recorder);

// Returns the results of a plain loop, from its steps.
TrainResults ResultsOf(const RunSpec& spec, const StepLog& log);
// Returns the results of a run through the runtime, from what was recorded. Specification and schedule as for
// ResultsSoFar.
TrainResults ResultsOf(const RunSpec& spec, const RunSchedule& schedule, int processes,
                       const RunRecorder& recorder, const StepLog& log);

struct EndedRun {
  absl::Status status;            // not ok: there is no summary or no folder; a sentence
  bool folder_gone = false;       // true if the folder is gone, and so nothing to look at
  std::vector<std::string> lost;  // a sentence for each other file that could not be written
  bool complete = false;          // true if the folder has the end and all steps: at most pictures are lost
};

// Writes the results of a run that finished.
EndedRun LeaveResults(const TrainResults& results, const RunRecord& record, OutputFolder* output,
                      StepLog* log);

struct UnfinishedRun {
  std::string message;    // what the folder holds where that is not the run's own work, or what failed; or ""
  bool complete = false;  // as of EndedRun
};

// Writes what there is of a run that was stopped or failed: the record, and of one that has made a step what
// the last steps looked like.
UnfinishedRun LeaveUnfinished(TrainResults so_far, const RunRecord& record, OutputFolder* output,
                              StepLog* log);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_END_H_
