// Runs the same training as one plain loop: the yardstick for the runtime's numbers.
//
// All layers run in one process, micro-batches one after the other, with LibTorch's own backward and without
// ranks, jobs or transfers. Where a rule has micro-batches read old weights, the loop keeps the parameters of
// the last steps and computes
//
// theta_{t+1} = theta_t - lr/B * sum over b of grad f_b(theta_hat_{t,b})
//
// (or the optimizer's step in place of lr), with theta_hat made stage by stage of theta_t and its forebears.
// The choice of version is written down here once more, not taken from the schedules. The loop shares with
// the runtime the layers, their initial values and the places of parameters in flat buffers (kernels of GPUs
// may depend on alignment), the optimizer's arithmetic and the data readers. In bfloat16 each step's weights
// are narrowed for the layers, and gradients are widened before they are summed. Writes `checkpoint-0/`, what
// the run file's `checkpoint` asks for on the way, and `checkpoint/` into `out_dir` (none if it is empty),
// with the names of the run's stages. Validates as the run file's `validate` says. A run that goes on reads
// its checkpoint, the runtime's or its own, and writes no `checkpoint-0/`.
#ifndef WEFT_WORKER_SHELL_REFERENCE_REFERENCE_H_
#define WEFT_WORKER_SHELL_REFERENCE_REFERENCE_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/session/job_hashes.h"
#include "run/run_spec.h"
#include "worker/shell/compute/evaluation.h"

namespace weft {

class DeviceBackend;

struct ReferenceStep {
  int step = 0;
  double loss = 0;  // mean over the micro-batches
  double seconds = 0;
  // Norm of all gradients, before they were clipped, if the run takes it; not a number if there is none.
  std::optional<double> gradient_norm;
  bool skipped = false;  // true if its updates were left out
};

// Callbacks for the checkpoints, validations and hashes of a training, each made before the next step begins.
struct ReferenceCheckpoints {
  // Asked after each step: true to save a checkpoint there and end with Cancelled, where the step is not the
  // last.
  std::function<bool()> stop;
  // Called when the checkpoint of so many steps is complete, or with `failure`, which says why it could not
  // be saved; the training goes on.
  std::function<void(int step, const std::string& failure)> saved;
  // The weights of so many steps have been validated, on the CPU.
  std::function<void(int step, const Evaluation& evaluation)> validated;
  // Called with the hashes that jobs of the runtime would have, in a run that records them, on the CPU. The
  // gradient of an input that several stages read is not among them: the loop has their sum.
  std::function<void(const JobHashes& job)> hashed;
};

// Checks that LibTorch takes the graphs of the run's model; OK for built-in ones. InvalidArgument names
// layer, operation and line.
absl::Status CheckExportedModel(const RunSpec& run);

// Trains on the backend's device or, without one, on the CPU. `on_step` is called after each step; false ends
// the training there (Cancelled). Failure: as data.h says of the data, Unavailable for the disk, Internal for
// LibTorch; OutOfRange for a loss, gradient or weight at which the run stops (non_finite.h).
absl::Status RunReference(const RunSpec& run, const std::string& out_dir,
                          const std::function<bool(const ReferenceStep&)>& on_step,
                          DeviceBackend* backend = nullptr, const ReferenceCheckpoints& checkpoints = {});

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_REFERENCE_H_
