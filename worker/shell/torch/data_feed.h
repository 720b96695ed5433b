// Provides the run's data to the passes of a rank: inputs and targets of a micro-batch, on the rank's device.
//
// If the device is the host, a job reads its own data. Another device has it sent ahead: a thread reads
// the pieces that the rank's coming jobs will ask for and begins their copies (data_prefetch.h), and a job
// waits for them on the device only. Data are narrowed on the host where layers read bfloat16.
//
// Invariants:
//   1. A piece has the same bits whether it was sent ahead or is read by the job, and whatever was asked for
//      before: it depends on step and micro-batch alone.
//   2. A piece that was sent ahead is charged to activations, and is not in the tally of the job that takes
//      it.
//
// Private to the adapter of LibTorch. Threads: any, several at once. Ownership: the data set is the feed's;
// the device and the run outlive it. Failure: of the data (data.h); ResourceExhausted of the device.
#ifndef WEFT_WORKER_SHELL_TORCH_DATA_FEED_H_
#define WEFT_WORKER_SHELL_TORCH_DATA_FEED_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "run/run_spec.h"
#include "worker/shell/data/data.h"
#include "worker/shell/data/data_prefetch.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {

class DataFeed {
 public:
  // `of_step` returns the pieces that the rank's jobs of a step ask for, in the order in which they are
  // expected.
  DataFeed(const RunSpec& run, std::unique_ptr<Dataset> data, RankDevice& device, const RankGuard& guard,
           DataPrefetch::OfStep of_step);

  // Returns a piece on the device, in the order of the calling thread's job.
  absl::StatusOr<at::Tensor> Take(const DataPiece& piece);
  // Returns true if pieces are sent before the jobs that take them.
  bool sends_ahead() const { return prefetch_ != nullptr; }
  // Returns false if the data hold what the model's own loss wants.
  bool has_targets() const { return data_->targets() > 0; }

 private:
  // Keeps buffers for data that are narrowed before they go to the device: one for each thread that reads at
  // once, kept for the next that does, since fresh pages cost more than the narrowing.
  class WideBuffers {
   public:
    at::Tensor Take(at::IntArrayRef sizes);
    void Give(at::Tensor buffer);

   private:
    Mutex mutex_;
    std::vector<at::Tensor> idle_ ABSL_GUARDED_BY(mutex_);  // all of one size
  };

  at::Tensor NewHost(at::IntArrayRef sizes, c10::ScalarType type);
  absl::StatusOr<at::Tensor> Read(const DataPiece& piece);
  absl::StatusOr<at::Tensor> ReadInputs(const DataPiece& piece);
  absl::StatusOr<at::Tensor> ReadTargets(const DataPiece& piece);
  absl::StatusOr<Tensor> Send(const DataPiece& piece);

  const RunSpec& run_;
  const std::unique_ptr<Dataset> data_;
  RankDevice& device_;
  const RankGuard& guard_;
  WideBuffers wide_buffers_;
  const std::unique_ptr<DataPrefetch> prefetch_;  // null where the device is the host
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_DATA_FEED_H_
