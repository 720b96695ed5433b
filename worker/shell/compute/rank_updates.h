// Declares the gradient sums and updates of a rank: the part of RankCompute (compute.h) that makes the next
// version of a stage's weights.
//
// Gradients are summed in the order of micro-batches 0, 1, 2, ..; out-of-order ones wait. Threads: one call
// at a time, on any thread, and no pass beside it.
#ifndef WEFT_WORKER_SHELL_COMPUTE_RANK_UPDATES_H_
#define WEFT_WORKER_SHELL_COMPUTE_RANK_UPDATES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class RankUpdates {
 public:
  virtual ~RankUpdates() = default;

  // Adds one micro-batch's slice to the sum of part `part` of `parts` for (job.step, job.stage). Called in
  // order of micro-batches.
  virtual absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part,
                                  int parts) = 0;
  // Returns the sum of the gradients of the micro-batches before the job's and of its own, whose memory it
  // takes.
  virtual absl::StatusOr<Tensor> AddToSum(const Job& job, const Tensor& before, Tensor gradient) = 0;
  // Returns the finished sum of that part; the rank gives it up. If the rank sums only its own gradients
  // (StageRole::sums_own), returns its sum, as part 0 of 1.
  virtual absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) = 0;

  // Returns the exact sum of squares (sum_of_squares.h) of TakeSum's `sum` for that part, together with
  // `others`, the results of such calls for other parts and stages. Statistics have no part in it. If a value
  // is infinite or not a number, returns OutOfRange where the run stops at it (train.non_finite), else a sum
  // without a norm.
  virtual absl::StatusOr<Tensor> SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                            const std::vector<Tensor>& others) = 0;

  // Makes the next version, by one optimizer step of the rank's part of the stage: from `sums` (all parts of
  // that, in order), or from the held sum when `sums` is empty. The mean over micro-batches is taken by
  // scaling the loss, not here. The optimizer's state is that of the newest version, whatever versions the
  // gradients were made with, and its learning rate is that of job.step. `norm`: where the run clips
  // gradients, the sum of squares of all stages' sums of this step, by which these are clipped first. Without
  // a norm in it the update is left out: the next version is the same, and the optimizer has made no step.
  // `keep`: the version that it begins with stays, for jobs that will read it; without, it is gone.
  virtual absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                              bool keep) = 0;

  // Makes the next version a copy of another rank's, in the role kInstalled (stage_role.h). `keep` as in
  // Update.
  virtual absl::Status InstallWeights(const Job& job, const Tensor& weights, bool keep) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_RANK_UPDATES_H_
