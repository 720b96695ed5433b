// Holds the loss and accuracy of a model on a data set.
#ifndef WEFT_WORKER_SHELL_COMPUTE_EVALUATION_H_
#define WEFT_WORKER_SHELL_COMPUTE_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <string>

namespace weft {

struct Evaluation {
  std::string version;  // of the checkpoint: the updates that made it
  int64_t samples = 0;  // evaluated; of all
  int64_t all_samples = 0;
  int64_t predictions = 0;  // one an image, one a token of a text
  int64_t correct = 0;      // of these: the highest score is the target's
  double loss_sum = 0;      // of the predictions' cross entropies

  double loss() const { return predictions == 0 ? 0 : loss_sum / static_cast<double>(predictions); }
  double accuracy() const {
    return predictions == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(predictions);
  }
};

// Called after each batch with what there is so far; false ends the evaluation there.
using EvaluationProgress = std::function<bool(const Evaluation&)>;

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_EVALUATION_H_
