// The names and the index of a checkpoint folder: of each stage a safetensors file with its weights and, but
// for initial weights, one with the rest of its training state (training_state.h); and an index written last.
//
// A stage whose weights several ranks hold in slices passes through one file a slice, of all its buffers.
// Each holder writes its own and then looks for all of them; who finds them joins them into the stage's files
// and removes them. Two who find them at once write the same bytes.
#ifndef WEFT_WORKER_SHELL_COMPUTE_CHECKPOINT_H_
#define WEFT_WORKER_SHELL_COMPUTE_CHECKPOINT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/training_state.h"

namespace weft {

inline constexpr absl::string_view kCheckpointIndex = "model.safetensors.index.json";

// "stage03.safetensors".
std::string StageFileName(int stage);
// "state/stage03.safetensors", in a folder of its own: who loads all files of a checkpoint gets its weights.
std::string StateFileName(int stage);

absl::Status MakeCheckpointFolder(const std::string& folder);

// Writes the stage's file into `folder`, which is made if it is not there: `values[i]` points at the elements
// of `layout.slots[i]`. Complete or not at all.
absl::Status WriteStageFile(const std::string& folder, const StageLayout& layout,
                            const std::vector<const float*>& values, int64_t version);

// Writes slice `part` of `parts` of the stage's flat buffers: of the newest weights, and of `buffers`, which
// are as StateBuffers names them.
absl::Status WriteSliceFile(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                            int64_t version, int part, int parts, const float* newest,
                            const std::vector<const float*>& buffers);
// Writes the stage's files from its slices' and removes those. OK without it while a slice is missing: its
// holder does it, or another has. FailedPrecondition for slices of another version.
absl::Status JoinSliceFiles(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                            int64_t version, int parts);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_CHECKPOINT_H_
