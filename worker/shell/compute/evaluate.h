// The loss and accuracy of a checkpoint over all samples of a data set, each once.
//
// All layers in one process, without a graph: batch norms by their running averages, nothing dropped. Which
// cut into stages wrote the checkpoint does not matter, nor do the run's schedule and training.
#ifndef WEFT_WORKER_SHELL_COMPUTE_EVALUATE_H_
#define WEFT_WORKER_SHELL_COMPUTE_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/run/run_spec.h"

namespace weft {

class DeviceBackend;

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

// Evaluates the checkpoint in `folder` on the run's data, in the run's precision, on the backend's device or,
// without one, on the CPU. `on_progress` is called after each batch with what
// there is so far; false ends it there (Cancelled). Failure: as data.h says of the data and
// checkpoint_reader.h of the checkpoint, Internal for LibTorch.
absl::StatusOr<Evaluation> Evaluate(const RunSpec& run, const std::string& folder,
                                    const std::function<bool(const Evaluation&)>& on_progress,
                                    DeviceBackend* backend = nullptr);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_EVALUATE_H_
