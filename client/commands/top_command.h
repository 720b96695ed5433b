// Runs `weft top`: shows what each worker of a coordinator does, again and again.
#ifndef WEFT_CLIENT_COMMANDS_TOP_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_TOP_COMMAND_H_

#include "client/commands/coordinator_access.h"

namespace weft {

struct TopOptions {
  CoordinatorOptions coordinator;
  bool once = false;    // true: shows it once, of the time since the runs began
  double interval = 1;  // seconds
};

// Returns after one look where the output is no terminal, or JSON; else at Ctrl-C.
ExitCode RunTop(const TopOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_TOP_COMMAND_H_
