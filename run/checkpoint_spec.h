// Reads and writes the run file's `checkpoint: {every: 100, keep: 2}`, or `checkpoint: none`.
//
// `every` is a whole number of steps, or a time as `30s`, `10m` or `2h`. Pure. Failure: as run_spec.h.
#ifndef WEFT_RUN_CHECKPOINT_SPEC_H_
#define WEFT_RUN_CHECKPOINT_SPEC_H_

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_spec.h"

namespace weft {

class FileSection;

CheckpointSpec ReadCheckpointSpec(FileSection& file, absl::Status& status);
// Checks that nothing of the run needs a checkpoint where it saves none.
void CheckNeedsNone(const RunSpec& spec, absl::Status& status);
nlohmann::json ToJson(const CheckpointSpec& checkpoint);

}  // namespace weft

#endif  // WEFT_RUN_CHECKPOINT_SPEC_H_
