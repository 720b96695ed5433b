// Runs one job of a rank on its compute state: from the tensors that the core gathered to the tensors that it
// will publish.
//
// It is the translation between the job graph's words (edges, parts, micro-batches) and the compute interface
// (forward, backward, sums). Called on the threads of the rank, without locks. Failure: the status of the
// compute, naming the job.
#ifndef WEFT_WORKER_SHELL_JOB_RUNNER_H_
#define WEFT_WORKER_SHELL_JOB_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/core/worker_core.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/monotonic_clock.h"

namespace weft {

struct JobTask {
  StartEffect start;
  std::vector<Tensor> inputs;     // of start.inputs
  std::vector<Tensor> gradients;  // of start.gradients
  int parts = 1;                  // members of the job's stage
  Tensor collected;               // of the end of a collective: its result
};

struct JobOutcome {
  absl::Status status;
  int64_t start_ns = 0, end_ns = 0;
  std::optional<double> loss;
  std::optional<int64_t> left_bytes;    // of a forward: its activations that stay until the backward
  std::optional<double> gradient_norm;  // of a reduce that clips: of its sum and what came to it
  Tensor activation, gradient, gradient_sum, squares;
  // For the collective that begins: the sum of the rank's gradients, or its slice of the weights and room for
  // the whole.
  std::optional<Tensor> contribution;
  Tensor whole;
  Tensor state;                         // of the stage, if it leaves
  std::vector<Tensor> input_gradients;  // of each input of the stage
  // Of the stage behind an update that was to take one; null else.
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> snapshot = std::shared_ptr<const StageSnapshot>();
  // What the device has still to do; null if the job has been done. Then the tensors are there once it is
  // reached, and loss and norm are among its figures.
  std::shared_ptr<LaunchedJob> launched;

  // The output that travels along an edge of this kind; weights are not an output (ask the compute).
  Tensor Output(TensorKind kind, int part, int parts) const;
};

// Releases the task's inputs before it returns; what a launched job still reads the device keeps.
// `begun`, if given, is called once the device knows of the job.
JobOutcome RunJob(RankCompute& compute, JobTask task, const std::function<void()>& begun = nullptr);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_JOB_RUNNER_H_
