// Tells a person how a training of this machine ended, after coordinator/record/run_end.h has written the
// results. Call it on the main thread.
#ifndef WEFT_CLIENT_TRAINING_TRAINING_END_H_
#define WEFT_CLIENT_TRAINING_TRAINING_END_H_

#include <string>

#include "client/console/console.h"
#include "client/training/local_training.h"
#include "coordinator/record/step_log.h"
#include "coordinator/record/train_results.h"

namespace weft {

// Writes the results of a finished run and prints the summary. Returns kExitOk also where only steps or
// traces are missing, and says so; kExitFailed without a summary or a folder.
ExitCode TellResults(const LocalTrainingOptions& options, const TrainResults& results, StepLog* log);

// Writes the results of a run that was `stopped` or `failed`, as far as there are any, and says what the
// folder holds where that is not the run's own work.
void TellUnfinished(const LocalTrainingOptions& options, const TrainResults& so_far, const std::string& state,
                    const std::string& reason, StepLog* log);

// Returns "the checkpoint of step 40 is complete; `weft train tiny.yaml --resume out/tiny` goes on from it",
// for the newest checkpoint of the run; "" if no run can go on from `step`.
std::string GoesOn(const LocalTrainingOptions& options, int step);

// Returns how long a training that was told to stop may take until its checkpoint is complete, in seconds:
// ten, and three times what the steps up to there should take.
double StopSeconds(const StepLog& log, int steps_remaining);

// Returns "stopping: saving a checkpoint after step 40; press Ctrl-C again to stop at once".
std::string StoppingText(int step, int end_step);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_TRAINING_END_H_
