// Runs `weft export-weights`: writes the weights of a checkpoint as one safetensors file, with the names that
// they have in the model, for other programs and for `weft train --weights`.
#ifndef WEFT_CLIENT_COMMANDS_EXPORT_WEIGHTS_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_EXPORT_WEIGHTS_COMMAND_H_

#include <string>

#include "client/console/console.h"

namespace weft {

struct ExportWeightsOptions {
  std::string folder;  // a checkpoint, or the output of a run, of which it takes the newest whole one
  std::string file;
  bool json = false;
};

ExitCode RunExportWeights(const ExportWeightsOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_EXPORT_WEIGHTS_COMMAND_H_
