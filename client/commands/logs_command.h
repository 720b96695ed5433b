// Runs `weft logs`: shows what worker processes and the coordinator say about a run.
#ifndef WEFT_CLIENT_COMMANDS_LOGS_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_LOGS_COMMAND_H_

#include <string>

#include "client/commands/coordinator_access.h"
#include "schedules/job.h"

namespace weft {

struct LogsOptions {
  CoordinatorOptions coordinator;
  std::string run;      // number of a coordinator's run, or an output folder
  bool follow = false;  // goes on until the run has ended; of a coordinator's run
  Rank rank = -1;       // -1: lines of all processes
};

// Follows a coordinator that is out of reach for a while, as workers do.
ExitCode RunLogs(const LogsOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_LOGS_COMMAND_H_
