// Computes the figures of an exported model, batch by batch, by the graph of its evaluation.
//
// The graph is that of the module in evaluation mode, and has no cuts: dropout is off where the module turns
// it off, and batch norms read the running averages. Random numbers that it draws depend on the run's seed,
// the number of the batch and the place in the graph. A figure that is a mean counts once for each sample of
// its batch; one with a count is summed, and its count too (run/exported_model.h).
//
// Private to the adapter of LibTorch. One thread, under a NoGradGuard. Failure: of the device, with its
// words; LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_REFERENCE_EXPORTED_EVALUATION_H_
#define WEFT_WORKER_SHELL_REFERENCE_EXPORTED_EVALUATION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/compute/evaluation.h"
#include "worker/shell/torch/plain_device.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

class ExportedEvaluation {
 public:
  // `run` has an exported model with an evaluation, and it and the device outlive this.
  ExportedEvaluation(const RunSpec& run, PlainDevice& device);

  // Takes the weights. The checkpoint is of the run's model, as ReadCheckpoint makes sure.
  absl::Status Load(const Checkpoint& checkpoint);

  // Adds the figures of the next batch. `fields`: on the host, the bytes of each sample's fields.
  absl::Status Add(const at::Tensor& fields, Evaluation* result);

 private:
  const uint64_t seed_;
  const ExportedModel& model_;  // of the evaluation
  const std::unique_ptr<const Layer> graph_;
  PlainDevice& device_;
  std::vector<at::Tensor> parameters_;  // and statistics
  int batches_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_EXPORTED_EVALUATION_H_
