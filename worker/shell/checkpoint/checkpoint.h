// Writes the files and the index of a checkpoint folder: for each stage a safetensors file with its weights
// and, except for initial weights, one with the rest of its training state (training_state.h); the index
// comes last.
//
// A stage whose weights several ranks hold in slices passes through one file a slice, of all its buffers.
// Each holder writes its own and then looks for all of them. A holder that finds them all joins them into the
// stage's files and removes them. Two that find them at once write the same bytes. JoinAllSlices joins those
// that nobody joined.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/shell/checkpoint/checkpoint_index.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/training_state.h"

namespace weft {

// Returns "stage03.safetensors".
std::string StageFileName(int stage);
// Returns "state/stage03.safetensors", in a folder of its own: a reader that loads all files of a checkpoint
// gets its weights.
std::string StateFileName(int stage);

absl::Status MakeCheckpointFolder(const std::string& folder);

// Writes the stage's file into `folder`, which is made if it is not there: `values[i]` points at the elements
// of `layout.slots[i]`. Complete or not at all. `training` is the TrainingId of all but initial weights,
// which belong to many trainings.
absl::Status WriteStageFile(const std::string& folder, const StageLayout& layout,
                            const std::vector<const float*>& values, int64_t version,
                            const std::string& training = "");

// Writes slice `part` of `parts` of the stage's flat buffers: of the newest weights, and of `buffers`, which
// are as StateBuffers names them.
absl::Status WriteSliceFile(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                            int64_t version, int64_t optimizer_steps, int part, int parts,
                            const float* newest, const std::vector<const float*>& buffers);
// Writes the stage's files from its slices' and removes those. Returns OK without doing so while a slice is
// missing: its holder does it, or another has. FailedPrecondition for slices of another version.
absl::Status JoinSliceFiles(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                            int64_t version, int parts);
// Joins the slices of every stage that has any. All of their holders have written theirs.
absl::Status JoinAllSlices(const std::string& folder, const ScheduledRun& run, int64_t version);

// The state of a stage, or of a slice of it, behind an update; its files are written from it.
struct StageSnapshot {
  StageLayout layout;
  StateRule rule;
  int64_t version = 0;
  int64_t optimizer_steps = 0;  // fewer where steps were skipped
  int part = 0, parts = 1;
  // Flat buffers in host memory: the newest weights, then as StateBuffers names them. Their bytes are there
  // once each one's `ready` has been reached.
  std::vector<Tensor> flats;
  // The memory of all flats, with room for a head before them (packed_snapshot.h); empty where each has its
  // own.
  Tensor block;
};
// Returns true once all its bytes are there; the device's failure, if it failed before.
absl::StatusOr<bool> IsThere(const StageSnapshot& snapshot);
// Writes the stage's files, or the slice's and, where all are there then, the stage's. Requires IsThere.
absl::Status WriteSnapshot(const std::string& folder, const StageSnapshot& snapshot);

// Writes the index as in compute.h, with the identity of the run. The time in it is at least `sealed_ms`.
absl::Status WriteCheckpointIndex(const std::string& folder, const RunSpec& run,
                                  const CheckpointIdentity& identity, int64_t sealed_ms = 0);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_H_
