// Trains a run briefly on the workers of a coordinator, and fetches what they measured.
//
// Main thread only. Ctrl-C cancels the run.
#ifndef WEFT_CLIENT_COMMANDS_FLEET_RUN_H_
#define WEFT_CLIENT_COMMANDS_FLEET_RUN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/commands/coordinator_access.h"
#include "client/commands/measured_schedules.h"
#include "client/runs/runs_client.h"
#include "client/training/stop_signals.h"
#include "run/run_spec.h"

namespace weft {

struct FleetOptions {
  bool wanted = false;  // train on workers of the coordinator, in place of this machine
  CoordinatorOptions coordinator;
  std::string pool;  // pool of these workers; "" for those of none
};

// Waits for free workers of the pool as any run does. Cancelled for a stop signal, with its name;
// FailedPrecondition if the run failed, with its reason; else the coordinator's status.
absl::StatusOr<MeasuredRun> TrainOnFleet(RunsClient& client, const RunSpec& run, int processes,
                                         const std::string& pool, StopSignals* signals);

// Returns the node of each of the workers; "" for one that is not connected any more.
absl::StatusOr<std::vector<std::string>> NodesOf(RunsClient& client, const std::vector<std::string>& workers);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_FLEET_RUN_H_
