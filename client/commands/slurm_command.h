// Runs `weft slurm`: prints the batch script by which Slurm trains a run file.
#ifndef WEFT_CLIENT_COMMANDS_SLURM_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_SLURM_COMMAND_H_

#include <string>
#include <vector>

#include "client/console/console.h"

namespace weft {

struct SlurmOptions {
  std::string file;
  std::string out;  // "" for out/NAME
  int nodes = 1;
  int tasks_per_node = 0;  // 0: as many as the ranks need
  bool gpus = false;
  int grace = 180;  // seconds
  std::vector<std::string> sbatch;
};

ExitCode RunSlurm(const SlurmOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_SLURM_COMMAND_H_
