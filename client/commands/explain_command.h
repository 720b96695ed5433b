// Runs `weft explain`: names the largest differences between a measured step and its plan, with their causes,
// in seconds that add up to the difference of the two makespans (schedules/explain/explanation.h).
#ifndef WEFT_CLIENT_COMMANDS_EXPLAIN_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_EXPLAIN_COMMAND_H_

#include <string>

#include "client/console/console.h"

namespace weft {

struct ExplainOptions {
  std::string folder;   // output folder of the run
  int step = -1;        // -1: the step of median time
  std::string profile;  // file; empty: the run's own plan
  bool json = false;
};

// Returns kExitBadConfiguration for a folder without a run's trace and plan, or for a profile of another
// model.
ExitCode RunExplain(const ExplainOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_EXPLAIN_COMMAND_H_
