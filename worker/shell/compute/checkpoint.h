// The names and the index of a checkpoint folder: one safetensors file a stage, and an index written last.
#ifndef WEFT_WORKER_SHELL_COMPUTE_CHECKPOINT_H_
#define WEFT_WORKER_SHELL_COMPUTE_CHECKPOINT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/shell/compute/parameters.h"

namespace weft {

inline constexpr absl::string_view kCheckpointIndex = "model.safetensors.index.json";

// "stage03.safetensors".
std::string StageFileName(int stage);

// Writes the stage's file into `folder`, which is made if it is not there: `values[i]` points at the elements
// of `layout.slots[i]`. Complete or not at all.
absl::Status WriteStageFile(const std::string& folder, const StageLayout& layout,
                            const std::vector<const float*>& values, int64_t version);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_CHECKPOINT_H_
