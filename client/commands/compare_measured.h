// Runs `weft compare --measure`: trains a set of schedules for a few steps for real, one after another, and
// shows what each took beside the simulator's prediction.
#ifndef WEFT_CLIENT_COMMANDS_COMPARE_MEASURED_H_
#define WEFT_CLIENT_COMMANDS_COMPARE_MEASURED_H_

#include "client/commands/compare_command.h"
#include "client/console/console.h"

namespace weft {

// Runs on the main thread only.
ExitCode RunMeasuredCompare(const CompareOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_COMPARE_MEASURED_H_
