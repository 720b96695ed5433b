// The same training as one plain loop: the yardstick for the runtime's numbers.
//
// All layers in one process, micro-batches one after the other, LibTorch's own backward, no ranks, jobs or
// transfers. Where a rule has micro-batches read old weights, the loop keeps the parameters of the last steps
// and computes
//
//   theta_{t+1} = theta_t - lr/B * sum over b of grad f_b(theta_hat_{t,b})
//
// (or the optimizer's step in place of lr), with theta_hat made stage by stage of theta_t and its forebears.
// Which of them is written down here once more, not taken from the schedules. What the loop shares with the
// runtime are the layers, their initial values and the places of parameters in flat buffers (kernels of GPUs
// may depend on alignment), the optimizer's arithmetic and the data readers. In bfloat16 each step's weights
// are narrowed for the layers, and gradients are widened before they are summed. Writes
// `checkpoint-0/` and `checkpoint/` into `out_dir` (none if it is empty), with the names of the run's stages.
// A run that goes on reads its checkpoint, the runtime's or its own, and writes no `checkpoint-0/`.
#ifndef WEFT_WORKER_SHELL_COMPUTE_REFERENCE_H_
#define WEFT_WORKER_SHELL_COMPUTE_REFERENCE_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/run/run_spec.h"

namespace weft {

class DeviceBackend;

struct ReferenceStep {
  int step = 0;
  double loss = 0;  // mean over the micro-batches
  double seconds = 0;
  std::optional<double> gradient_norm;  // before it was clipped, if the run clips
};

// On the backend's device or, without one, on the CPU. `on_step` is called after each step; false ends the
// training there (Cancelled). Failure: as data.h says of the data, Unavailable for the disk, Internal for
// LibTorch.
absl::Status RunReference(const RunSpec& run, const std::string& out_dir,
                          const std::function<bool(const ReferenceStep&)>& on_step,
                          DeviceBackend* backend = nullptr);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_REFERENCE_H_
