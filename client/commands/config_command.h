// Runs `weft config`: checks a configuration file, or shows the settings in force and where they come from.
#ifndef WEFT_CLIENT_COMMANDS_CONFIG_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_CONFIG_COMMAND_H_

#include <string>

#include "client/console/console.h"

namespace weft {

struct ConfigOptions {
  std::string action;  // "check" or "show"
  std::string file;    // "" for the program's own
  std::string own;  // file that this process took its flags from: --config, WEFT_CONFIG or the user's; or ""
  std::string program;  // "weft", "weft-coordinator" or "weft-worker"; "" to know it by the file
  std::string unit;     // unit of systemd whose settings are shown, by its name or path; "" for none
  bool origins = false, json = false;
};

// A daemon's configuration is its own to know: the program of that name beside this one answers, in the place
// of this process. Returns kExitBadConfiguration for a wrong file.
ExitCode RunConfig(const ConfigOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_CONFIG_COMMAND_H_
