// Packs the snapshot of a stage, or of a slice of it, into one tensor, as processes keep it in memory and
// send it to each other, and reads stages from such tensors.
//
// A head of 64 bytes says what follows: the version, the optimizer's steps, the part and the size of the
// buffers. Behind it lie the flat buffers in the order of StageSnapshot. A reader checks the bytes against
// the run and the head: DataLoss for bytes that are no snapshot of this stage and step.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_PACKED_SNAPSHOT_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_PACKED_SNAPSHOT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/snapshot_memory.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

inline constexpr size_t kSnapshotHeadBytes = 64;

// Returns the snapshot as one tensor. It shares the snapshot's block, or copies into `memory` where there is
// none. Requires that all its bytes are there (IsThere). ResourceExhausted where there is no memory.
absl::StatusOr<Tensor> PackSnapshot(const StageSnapshot& snapshot, SnapshotMemory& memory);

// Reads the stage that the run goes on from: from the whole, or from those of its slices that hold what is
// read.
absl::StatusOr<std::shared_ptr<const KeptStage>> ReadPackedStage(const RunSpec& run, const StateRule& rule,
                                                                 int stage, const std::vector<Tensor>& parts);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_PACKED_SNAPSHOT_H_
