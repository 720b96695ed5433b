// Plans a training whose run file says `schedule: auto`: measures its layers, and plans with them. Main
// thread only (measured_run.h).
#ifndef WEFT_CLIENT_COMMANDS_AUTO_PLAN_H_
#define WEFT_CLIENT_COMMANDS_AUTO_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/commands/kept_plan.h"
#include "client/files/run_file.h"
#include "client/training/device_flags.h"
#include "nlohmann/json.hpp"

namespace weft {

struct AutoPlan {
  nlohmann::json keys;  // of the plan, for the reader of the run file
  std::string line;     // what was chosen, and why
  KeptPlan kept;
};

// The ranks to plan for, and the processes that they train in; 0 where `weft train` chooses.
struct PlannedRanks {
  int ranks = 1, processes = 0;
};

// `run` is the file's under any schedule. Returns Cancelled for a stop signal, ResourceExhausted where
// nothing fits the memory, else as TrainAndMeasure and MakePlan.
absl::StatusOr<AutoPlan> PlanTraining(const std::string& file, const RunSpec& run, const AutoSchedule& asked,
                                      const PlannedRanks& planned_for, const DeviceFlags& device);

// Reads the plan that a training left beside or above a checkpoint. InvalidArgument where there is none.
absl::StatusOr<nlohmann::json> PlanOfCheckpoint(const std::string& folder);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_AUTO_PLAN_H_
