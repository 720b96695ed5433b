// Holds the loss and the further figures of a model on a data set.
#ifndef WEFT_WORKER_SHELL_COMPUTE_EVALUATION_H_
#define WEFT_WORKER_SHELL_COMPUTE_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace weft {

// A mean of what has been added so far; not a number before anything counts.
struct RunningMean {
  double sum = 0, count = 0;

  void Add(double more, double counted) {
    sum += more;
    count += counted;
  }
  double value() const { return sum / count; }
};

struct Evaluation {
  std::string version;  // of the checkpoint: the updates that made it
  int64_t samples = 0;  // evaluated; of all
  int64_t all_samples = 0;
  int64_t predictions = 0;                     // of a built-in model: one an image, one a token of a text
  int64_t correct = 0;                         // of these: the highest score is the target's
  RunningMean losses;                          // of a built-in model the predictions' cross entropies
  std::map<std::string, RunningMean> further;  // of an exported model, by name

  double loss() const { return losses.value(); }
  double accuracy() const {
    return RunningMean{static_cast<double>(correct), static_cast<double>(predictions)}.value();
  }
  // Returns the values beside the loss by name: the further ones, or a built-in model's accuracy.
  std::map<std::string, double> metrics() const {
    std::map<std::string, double> values;
    for (const auto& [name, mean] : further) values[name] = mean.value();
    if (predictions > 0) values["accuracy"] = accuracy();
    return values;
  }
};

// Called after each batch with what there is so far; false ends the evaluation there.
using EvaluationProgress = std::function<bool(const Evaluation&)>;

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_EVALUATION_H_
