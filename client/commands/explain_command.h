// Runs `weft explain`: names the largest differences between a measured step and its plan, with their causes,
// in seconds that add up to the difference of the two makespans (schedules/explain/explanation.h). For a
// coordinator's run that waits, stands still or has ended it says why that does not run: of one that stands
// still, what each rank waits for (docs/design/waits.md).
#ifndef WEFT_CLIENT_COMMANDS_EXPLAIN_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_EXPLAIN_COMMAND_H_

#include <string>

#include "client/commands/coordinator_access.h"

namespace weft {

struct ExplainOptions {
  CoordinatorOptions coordinator;
  std::string run;      // number of a coordinator's run, or output folder
  int step = -1;        // -1: the step of median time
  std::string profile;  // file; empty: that of the plan that the run keeps, or its own job times
  bool own_times = false;
  bool now = false;  // what ranks of a coordinator's run wait for now, whether it stands still or not
  Rank rank = -1;    // likewise, of this rank; -1 for all
};

// Returns kExitBadConfiguration for a run without a trace and a plan, or for a profile of another model.
ExitCode RunExplain(const ExplainOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_EXPLAIN_COMMAND_H_
