// Takes the hashes of the plain loop's values, as jobs of the runtime would have them
// (proto/session/job_hashes.h).
//
// Private to the adapter of LibTorch. Tensors are of the host's memory. One thread.
#ifndef WEFT_WORKER_SHELL_REFERENCE_REFERENCE_HASHES_H_
#define WEFT_WORKER_SHELL_REFERENCE_REFERENCE_HASHES_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "proto/session/job_hashes.h"

namespace weft {

class ReferenceHashes {
 public:
  using Sink = std::function<void(const JobHashes& job)>;

  // `inputs`: the stages that each stage reads. Without a sink nothing is taken.
  ReferenceHashes(std::vector<std::vector<int>> inputs, int first_step, Sink sink);

  bool on() const { return sink_ != nullptr; }

  // Note the parts of a micro-batch in the loop's order: for each stage the weights that it reads and its
  // output, the loss, the gradient that it adds and the sum so far. EndMicrobatch hands on its jobs.
  void NoteWeights(int stage, int version, const at::Tensor& flat);
  void NoteOutput(int stage, const at::Tensor& activation);
  void NoteGradient(int stage, const at::Tensor& flat, const at::Tensor& sum);
  void EndMicrobatch(int step, int microbatch, double loss);

  // Hand on the norm of a step, and the sum and the weights that an update takes and makes.
  void NoteNorm(int step, double norm);
  void NoteUpdate(int step, int stage, const at::Tensor& sum, const at::Tensor& weights);

 private:
  struct Stage {
    std::vector<ValueHash> forward, backward;
    at::Tensor output;
  };

  void NoteInputGradients(int stage);
  int stages() const { return static_cast<int>(stages_.size()); }

  const std::vector<std::vector<int>> inputs_;
  const int first_step_;
  const Sink sink_;
  std::vector<int> consumers_;  // number of them, by stage
  std::vector<Stage> stages_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_REFERENCE_HASHES_H_
