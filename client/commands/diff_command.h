// Runs `weft diff`: finds the first job whose results differ between two runs of the same training.
#ifndef WEFT_CLIENT_COMMANDS_DIFF_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_DIFF_COMMAND_H_

#include <string>

#include "client/console/console.h"

namespace weft {

struct DiffOptions {
  std::string a, b;  // output folders of the runs
  bool json = false;
};

// Returns kExitOk if they are equal, kExitFailed if they differ, kExitBadConfiguration if they cannot be
// compared.
ExitCode RunDiffCommand(const DiffOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_DIFF_COMMAND_H_
