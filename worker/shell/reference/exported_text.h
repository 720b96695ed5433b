// Scores what follows some tokens, by an exported language model.
//
// The graph has one length: tokens behind the given ones are filled in. The scores behind a token must not
// depend on tokens behind it, and the first call makes sure by two fillings.
//
// Private to the adapter of LibTorch. One thread, under a NoGradGuard. Failure: of the device, with its
// words; FailedPrecondition for a model that is not so; LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_REFERENCE_EXPORTED_TEXT_H_
#define WEFT_WORKER_SHELL_REFERENCE_EXPORTED_TEXT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "run/text_model.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/reference/evaluation_graph.h"
#include "worker/shell/torch/plain_device.h"

namespace weft {

class ExportedText {
 public:
  // `text` is of the run's model, which is exported. The device outlives this.
  ExportedText(const RunSpec& run, const TextModel& text, PlainDevice& device);

  // Takes the weights. The checkpoint is of the run's model, as ReadCheckpoint makes sure.
  absl::Status Load(const Checkpoint& checkpoint) { return graph_.Load(checkpoint); }

  // Returns the scores of what follows the last of `tokens`, by number, in float32. From one token to as many
  // as the context.
  absl::StatusOr<std::vector<float>> ScoresAfter(const std::vector<int64_t>& tokens);

 private:
  absl::Status CheckCausal(std::vector<int64_t> tokens);
  absl::StatusOr<at::Tensor> AllScores(std::vector<int64_t> tokens, int64_t filling);
  absl::StatusOr<std::vector<float>> ScoresBehind(const std::vector<int64_t>& tokens, int64_t filling);

  EvaluationGraph graph_;
  const ExportedField field_;  // of the tokens
  int64_t rows_;               // most tokens that there are scores behind; the context until the first run
  bool checked_ = false;       // that fillings change nothing
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_EXPORTED_TEXT_H_
