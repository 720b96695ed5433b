// Runs `weft checkpoint ls` and `verify`: which checkpoints a run has left, and whether they are whole.
//
// `ls` reads indexes and headers. `verify` reads every byte; where it finds damage it names each file, says
// which checkpoint to go on from, and returns kExitBadConfiguration. Neither changes anything.
#ifndef WEFT_CLIENT_COMMANDS_CHECKPOINT_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_CHECKPOINT_COMMAND_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/console/console.h"

namespace weft {

struct CheckpointOptions {
  std::string action;  // ls, verify
  std::string folder;  // a checkpoint, or the output of a run; or a run file, for its out/NAME
  bool json = false;
};

// Returns the checkpoint whose weights a command reads: the one that the folder is, or the newest whole one
// of a run's output. Says which newer ones it leaves out.
absl::StatusOr<std::string> CheckpointToRead(const std::string& folder);

ExitCode RunCheckpoint(const CheckpointOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_CHECKPOINT_COMMAND_H_
