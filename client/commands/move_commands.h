// Runs `weft move` and `weft drain`: ranks go to another worker, or away from one, without a fault.
#ifndef WEFT_CLIENT_COMMANDS_MOVE_COMMANDS_H_
#define WEFT_CLIENT_COMMANDS_MOVE_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/commands/coordinator_access.h"
#include "schedules/job.h"

namespace weft {

struct MoveOptions {
  CoordinatorOptions coordinator;
  uint64_t run = 0;
  std::vector<Rank> ranks;
  std::string to;  // the worker's name, or the number of its process
  std::string reason;
  bool detach = false;
  double timeout = 0;  // seconds; 0: none
};
struct DrainOptions {
  CoordinatorOptions coordinator;
  std::string worker;  // as `to`
  std::string reason;
  bool detach = false;
  double timeout = 0;
};

// Returns when the ranks compute on the worker; kExitFailed if the run ended before, or went on elsewhere.
ExitCode RunMove(const MoveOptions& options);
// Returns when the worker has left.
ExitCode RunDrain(const DrainOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_MOVE_COMMANDS_H_
