#include "client/train_command.h"

#include "client/run_file.h"

namespace weft {

ExitCode RunTrain(const TrainOptions& options) {
  const auto spec = ReadRunFile(options.file);
  if (!spec.ok()) return Fail(kExitBadConfiguration, spec.status().message());
  return Fail(kExitFailed, "not yet");
}

}  // namespace weft
