// Runs one job of a rank on its compute state: from the tensors that the core gathered to the tensors that it
// will publish.
//
// It translates between the job graph's words (edges, parts, micro-batches) and the compute interface
// (forward, backward, sums). Called on a thread that does the rank's task, without locks. Failure: the
// status of the compute, naming the job.
#ifndef WEFT_WORKER_SHELL_LOOP_JOB_RUNNER_H_
#define WEFT_WORKER_SHELL_LOOP_JOB_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/monotonic_clock.h"
#include "proto/session/job_hashes.h"
#include "worker/core/worker_core.h"
#include "worker/shell/checkpoint/snapshot_memory.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/hash_notes.h"

namespace weft {

struct JobTask {
  StartEffect start;
  std::vector<Tensor> inputs;      // tensors of start.inputs
  std::vector<Tensor> gradients;   // tensors of start.gradients
  int parts = 1;                   // number of members of the job's stage
  Tensor collected;                // result of a collective, at its end
  std::optional<HashTask> hashes;  // in a run that records hashes
  // Memory for the snapshot that the job takes, if it does.
  SnapshotMemory* snapshot_memory = nullptr;
  std::string folder;  // the run's output, where the update is to put a version aside; empty for none
};

struct JobOutcome {
  absl::Status status;
  int64_t start_ns = 0, end_ns = 0;
  std::optional<double> loss;
  std::optional<int64_t> activation_bytes;  // activations of a forward that stay until the backward
  std::optional<JobBytes> bytes;            // what it took while it ran; none where that is not measured
  // Norm of a reduce that clips: of its sum and the sums that came to it.
  std::optional<double> gradient_norm;
  Tensor activation, gradient, gradient_sum, squares;
  std::optional<Tensor> kept_weights;  // weights that came with the job, and are kept for others of its rank
  // Tensors for the collective that begins: the sum of the rank's gradients, or its slice of the weights and
  // room for the whole.
  std::optional<Tensor> contribution;
  Tensor whole;
  Tensor state;                         // state of the stage, if it leaves
  std::vector<Tensor> input_gradients;  // gradients of each input of the stage
  // Snapshot of the stage behind an update that was to take one; null else.
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> snapshot = std::shared_ptr<const StageSnapshot>();
  // Work that the device has still to do; null if the job has been done. Otherwise the tensors are there once
  // it is reached, and loss and norm are among its figures.
  std::shared_ptr<LaunchedJob> launched;

  // Hashes of the job's values, if the task asked for them; of a job that is started several times, those of
  // this time.
  std::vector<ValueHash> hashes;

  // Returns the output that travels along an edge of this kind; weights are not an output (ask the compute).
  Tensor Output(TensorKind kind, int part, int parts) const;
};

// Runs the job and releases the task's inputs before it returns; the device keeps tensors that a launched job
// still reads. `begun`, if given, is called once the device knows of the job.
JobOutcome RunJob(RankCompute& compute, JobTask task, const std::function<void()>& begun = nullptr);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_JOB_RUNNER_H_
