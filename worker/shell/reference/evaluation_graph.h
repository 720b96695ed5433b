// Runs a graph of an exported model that reads data, and parameters by their names: that of the evaluation,
// or a part of it, in one process and without cuts.
//
// Dropout is off where the module turns it off, and batch norms read the running averages. Random numbers
// that the graph draws depend on the run's seed, the number of the batch and the place in the graph.
//
// Private to the adapter of LibTorch. One thread, under a NoGradGuard. Failure: of the device, with its
// words; LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_REFERENCE_EVALUATION_GRAPH_H_
#define WEFT_WORKER_SHELL_REFERENCE_EVALUATION_GRAPH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/torch/plain_device.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

class EvaluationGraph {
 public:
  // `run` has an exported model, to which `graph`, of one layer, belongs. The device outlives this.
  EvaluationGraph(const RunSpec& run, std::shared_ptr<const ExportedModel> graph, PlainDevice& device);

  // Takes the weights. The checkpoint is of the run's model, as ReadCheckpoint makes sure.
  absl::Status Load(const Checkpoint& checkpoint);

  // Returns the output for the next batch, on the host. `fields`: on the host, the bytes of each sample's
  // fields.
  absl::StatusOr<at::Tensor> Run(const at::Tensor& fields);

  const ExportedModel& model() const { return *model_; }

 private:
  const uint64_t seed_;
  const std::shared_ptr<const ExportedModel> model_;
  const std::unique_ptr<const Layer> graph_;
  PlainDevice& device_;
  std::vector<at::Tensor> parameters_;  // and statistics
  int batches_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_EVALUATION_GRAPH_H_
