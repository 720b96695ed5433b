// Packs the whole state of a stage into one flat tensor, to go on with another rank, and unpacks one that
// came. stage_state.h describes the tensor.
//
// While a state is here, each part of it lies in a block of its own, charged to its class; all of them are
// copied together when it leaves. So a rank's bytes by class are true while it computes. The host reads the
// head of a state: states migrate where the device is the host (torch_device.cc refuses others).
//
// Private to the adapter of LibTorch. One thread at a time, and no pass of the stage beside it. Failure:
// DataLoss for a tensor that is not a state of this stage, FailedPrecondition where a pass still uses the
// weights or gradients wait, ResourceExhausted of the device; the state is then lost.
#ifndef WEFT_WORKER_SHELL_TORCH_STAGE_PACKING_H_
#define WEFT_WORKER_SHELL_TORCH_STAGE_PACKING_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/held_stage.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

// Takes the state's versions, optimizer state and gradient sum into the stage. Requires that it holds
// nothing.
absl::Status UnpackState(const Tensor& state, RankDevice& device, HeldStage* stage);

// Takes them out of the stage, which then holds nothing. Requires that it holds weights.
absl::StatusOr<Tensor> PackState(RankDevice& device, HeldStage* stage);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_STAGE_PACKING_H_
