// Makes a worker's view of a run from the run file's JSON text, as the wire carries it.
#ifndef WEFT_WORKER_SHELL_LOOP_RUN_SHAPE_H_
#define WEFT_WORKER_SHELL_LOOP_RUN_SHAPE_H_

#include <string>

#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/core/worker_core.h"

namespace weft {

// Parses the text. InvalidArgument for text that is not JSON or not a valid run.
absl::StatusOr<RunSpec> ParseRunSpecText(const std::string& text);

// Returns the checked schedule of the run, for the core.
absl::StatusOr<WorkerCore::RunShape> ParseRunShape(const std::string& text);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUN_SHAPE_H_
