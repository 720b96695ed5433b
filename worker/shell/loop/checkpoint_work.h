// Makes the work on a run's folders that is done beside its jobs: completing checkpoints, and validating
// weights that were kept aside. The work shares what it needs, and may outlive the run. A run without an
// output folder (null) has none of either, which the work says.
#ifndef WEFT_WORKER_SHELL_LOOP_CHECKPOINT_WORK_H_
#define WEFT_WORKER_SHELL_LOOP_CHECKPOINT_WORK_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/validator.h"

namespace weft {

using SharedFolders = std::shared_ptr<const CheckpointFolders>;

// Returns the work that completes or drops the checkpoint.
std::function<absl::Status()> SealWork(const SealEffect& seal, SharedFolders folders);

// Returns the work that validates the weights that stay aside from that step. Borrows the device.
Validator::Work ValidationWork(Device& device, std::shared_ptr<const RunSpec> spec, SharedFolders folders,
                               int step);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_CHECKPOINT_WORK_H_
