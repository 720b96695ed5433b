// Runs `weft doctor`: looks for what keeps Weft from working on this machine, or makes it slow.
#ifndef WEFT_CLIENT_COMMANDS_DOCTOR_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_DOCTOR_COMMAND_H_

#include "client/commands/coordinator_access.h"

namespace weft {

struct DoctorOptions {
  CoordinatorOptions coordinator;
  bool machine_only = false;  // true: no coordinator is asked
};

// Returns kExitFailed if something does not work.
ExitCode RunDoctor(const DoctorOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_DOCTOR_COMMAND_H_
