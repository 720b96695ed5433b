// Counts by what the sums of an exported model's losses are divided, in each step.
//
// A loss may be a sum with a count, as of the labels that are no filling (run/exported_model.h). The mean
// over a whole step is the sum over all micro-batches, divided by the count over all of them; a mean of the
// micro-batches' means would weigh them alike. The count depends on the data alone. So the rank with the last
// layer counts all micro-batches of the step first, and divides each sum by `count / B`: the mean over the B
// micro-batches, by which losses and gradients are put together everywhere, is then the mean of the step.
//
// Private to the adapter of LibTorch. Threads: any, several at once. Ownership: the run outlives it. Failure:
// of the data (data.h); InvalidArgument for a step that counts nothing; LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_TORCH_LOSS_COUNTS_H_
#define WEFT_WORKER_SHELL_TORCH_LOSS_COUNTS_H_

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "run/run_spec.h"
#include "worker/shell/data/data.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

class LossCounts {
 public:
  explicit LossCounts(const RunSpec& run);

  // Returns the number by which the step's sums are divided; 1 for a model whose loss is a mean by itself.
  absl::StatusOr<float> DivisorOf(int step);

 private:
  absl::Status Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<double> CountOf(int step, int microbatch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RunSpec& run_;
  const std::unique_ptr<const Layer> counting_;  // null for a model without a count
  Mutex mutex_;
  std::unique_ptr<Dataset> fields_ ABSL_GUARDED_BY(mutex_);  // that the count reads; opened at the first use
  std::map<int, float> divisors_ ABSL_GUARDED_BY(mutex_);    // of the newest steps
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_LOSS_COUNTS_H_
