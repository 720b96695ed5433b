// Computes the figures of an exported model, batch by batch, by the graph of its evaluation.
//
// A figure that is a mean counts once for each sample of its batch; one with a count is summed, and its count
// too (run/exported_model.h).
//
// Private to the adapter of LibTorch. One thread, under a NoGradGuard. Failure: of the device, with its
// words; LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_REFERENCE_EXPORTED_EVALUATION_H_
#define WEFT_WORKER_SHELL_REFERENCE_EXPORTED_EVALUATION_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/compute/evaluation.h"
#include "worker/shell/reference/evaluation_graph.h"
#include "worker/shell/torch/plain_device.h"

namespace weft {

class ExportedEvaluation {
 public:
  // `run` has an exported model with an evaluation, and it and the device outlive this.
  ExportedEvaluation(const RunSpec& run, PlainDevice& device);

  // Takes the weights. The checkpoint is of the run's model, as ReadCheckpoint makes sure.
  absl::Status Load(const Checkpoint& checkpoint) { return graph_.Load(checkpoint); }

  // Adds the figures of the next batch. `fields`: on the host, the bytes of each sample's fields.
  absl::Status Add(const at::Tensor& fields, Evaluation* result);

 private:
  EvaluationGraph graph_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_EXPORTED_EVALUATION_H_
