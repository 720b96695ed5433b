// Runs `weft generate`: prints what a trained gpt writes after a prompt.
#ifndef WEFT_CLIENT_COMMANDS_GENERATE_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_GENERATE_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/console/console.h"
#include "client/training/device_flags.h"

namespace weft {

struct GenerateOptions {
  std::string source;      // the folder of a training's results, or a run file
  std::string checkpoint;  // "" for the folder's own, or out/NAME/checkpoint, NAME the run's name
  std::string prompt = "\n";
  int tokens = 200;
  double temperature = 0.8;  // 0: the likeliest token each time
  int top_k = 0;             // 0: any token may be drawn
  uint64_t seed = 1;
  DeviceFlags device;
  bool json = false;
};

// Writes the prompt and the text after it to standard output, token by token as they come; ids of tokens
// where the run's data are ids.
ExitCode RunGenerate(const GenerateOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_GENERATE_COMMAND_H_
