// Runs `weft eval`: prints the loss and metrics of a checkpoint on a data set.
#ifndef WEFT_CLIENT_COMMANDS_EVAL_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_EVAL_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/console/console.h"
#include "client/training/device_flags.h"

namespace weft {

struct EvalOptions {
  std::string file;
  std::string checkpoint;  // "" means out/NAME/checkpoint, NAME the run's name
  // Files that replace the run file's data; "" for those.
  std::string images, labels, cifar10, text;
  std::vector<std::string> arrays;  // FIELD=FILE, for an exported model
  bool validation = false;          // on the run file's held-out data
  int64_t samples = 0;              // the first so many; 0 for all, or as many as the run file validates on
  DeviceFlags device;
  bool json = false;
};

ExitCode RunEval(const EvalOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_EVAL_COMMAND_H_
