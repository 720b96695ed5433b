// Loads the model of a checkpoint, all of its layers in one process, without a graph: batch norms by their
// running averages, nothing dropped.
//
// The cut into stages of the checkpoint does not matter, nor do the run's schedule and training. Private
// to the adapter of LibTorch. One thread, under a NoGradGuard. Failure: of the device, with its words;
// LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_REFERENCE_TRAINED_MODEL_H_
#define WEFT_WORKER_SHELL_REFERENCE_TRAINED_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/model_layers.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/torch/plain_device.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

class TrainedModel {
 public:
  // Makes the model in the run's precision, on the device, which outlives this.
  TrainedModel(const RunSpec& run, PlainDevice& device);

  // Takes the weights. The checkpoint is of the run's model, as ReadCheckpoint makes sure.
  absl::Status Load(const Checkpoint& checkpoint);

  // Computes the mean loss of a batch, and how many of the highest scores are their targets'.
  absl::Status Evaluate(const at::Tensor& inputs, const at::Tensor& targets, double* loss, int64_t* correct);

  // Returns the scores of what follows the last of `tokens`, by vocabulary, in float32 on the host. The model
  // is a gpt; from one token to as many as its context.
  absl::StatusOr<std::vector<float>> ScoresAfter(const std::vector<int64_t>& tokens);

 private:
  at::Tensor Scores(const at::Tensor& inputs) const;

  const ModelSpec model_;
  const bool narrows_;
  PlainDevice& device_;
  const std::vector<LayerCount> counts_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::vector<at::Tensor>> parameters_;  // of each layer
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_TRAINED_MODEL_H_
