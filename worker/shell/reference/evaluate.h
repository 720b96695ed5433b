// Computes the loss of a checkpoint, and its accuracy or the figures of an exported model, over the samples
// of a data set, each once.
//
// All layers run in one process, without a graph. Batch norms use their running averages, and nothing is
// dropped. An exported model runs as its module in evaluation mode, in batches of the size of a micro-batch.
// The cut of the checkpoint into stages does not matter, nor do the run's schedule and training.
#ifndef WEFT_WORKER_SHELL_REFERENCE_EVALUATE_H_
#define WEFT_WORKER_SHELL_REFERENCE_EVALUATE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/compute/evaluation.h"

namespace weft {

class DeviceBackend;

// Evaluates the checkpoint in `folder` on the run's data, or the first `samples` of them, in the run's
// precision, on the backend's device or, without one, on the CPU. Cancelled where `on_progress` ends it.
// Failure: as data.h says of the data and checkpoint_reader.h of the checkpoint, Internal for LibTorch;
// InvalidArgument for an exported model without an evaluation, or whose loss counts nothing.
absl::StatusOr<Evaluation> Evaluate(const RunSpec& run, const std::string& folder,
                                    const EvaluationProgress& on_progress, DeviceBackend* backend = nullptr,
                                    int64_t samples = 0);

// Computes the same of weights in memory, on the run's held-out data, on the CPU, in a process that is
// prepared for the run.
absl::StatusOr<Evaluation> EvaluateHeldOut(const RunSpec& run, const Checkpoint& checkpoint,
                                           const EvaluationProgress& on_progress);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_EVALUATE_H_
