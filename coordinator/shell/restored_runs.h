// Prepares the runs that a store has for a coordinator that begins: plans those that go on, and takes up
// their output folders.
#ifndef WEFT_COORDINATOR_SHELL_RESTORED_RUNS_H_
#define WEFT_COORDINATOR_SHELL_RESTORED_RUNS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/events.h"
#include "coordinator/record/run_records.h"
#include "coordinator/shell/server_options.h"

namespace weft {

struct RestoredRuns {
  std::vector<RestoreRun> runs;  // by number
  Records records;               // the new life's epoch, and what has been written since
  size_t live = 0;               // number of runs that go on
};

// Restores the stored runs. A run that cannot be planned, or whose folder cannot be taken up, is restored
// with that failure. Unavailable if the folder of a run that goes on cannot be taken up for a cause that may
// pass, as a disk that is not mounted yet: then nothing is to be stored, and the coordinator ends. Blocks as
// long as planning and the disk take, and calls `progress` before each run. Call it before the server starts.
absl::StatusOr<RestoredRuns> RestoreRuns(StoredState&& stored, const Planner& planner, RunRecords* folders,
                                         const std::function<void(size_t taken, size_t runs)>& progress);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_RESTORED_RUNS_H_
