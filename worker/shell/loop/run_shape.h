// Makes a worker's view of a run from the run file's JSON text, as the wire carries it.
#ifndef WEFT_WORKER_SHELL_LOOP_RUN_SHAPE_H_
#define WEFT_WORKER_SHELL_LOOP_RUN_SHAPE_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/core/worker_core.h"

namespace weft {

// Parses the text and makes the schedule, which it checks.
absl::StatusOr<WorkerCore::RunShape> ParseRunShape(const std::string& text);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUN_SHAPE_H_
