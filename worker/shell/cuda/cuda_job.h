// Represents a job that a GPU was given: its start and end in the order of its stream, and its reported
// figures.
//
// Losses and sums of squares are copied into page-locked slots on the job's stream and read once the job's
// end has been reached; times come from two events around the job (device_clock.h). A failure of the host
// while the job was enqueued, or of the device by the job's end, is the failure of Reached, with the job's
// name. Threads: one enqueues; then any. Nothing here waits. Ownership: shared; slots and events go back to
// their pools.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_JOB_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_JOB_H_

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "schedules/job.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/cuda/cuda_event.h"
#include "worker/shell/cuda/cuda_holds.h"
#include "worker/shell/cuda/device_clock.h"

namespace weft {

// The page-locked memory to which a device writes the figures of one job.
struct FigureSlot {
  float loss;
  uint64_t limbs[SumOfSquares::kLimbs];
};

class FigureSlots : public std::enable_shared_from_this<FigureSlots> {
 public:
  explicit FigureSlots(int device) : device_(device) {}
  // Takes a slot, which returns itself when its last owner goes. c10::Error where there is no memory.
  std::shared_ptr<FigureSlot> Take();

 private:
  const int device_;
  Mutex mutex_;
  std::vector<FigureSlot*> free_ ABSL_GUARDED_BY(mutex_);
};

// Puts the device's clock on the host's. A span between events is given in milliseconds as a float32, which
// is precise enough for some seconds; so the end of some job becomes the next base.
class CudaClock {
 public:
  struct Base {
    std::shared_ptr<CudaFence> event;
    int64_t host_ns;
  };
  // Waits for the work that `stream` was given.
  explicit CudaClock(const c10::cuda::CUDAStream& stream);

  // Returns the latest base.
  std::shared_ptr<const Base> base() const;
  // Returns the span of two timed events behind `base` that have been reached.
  DeviceClock::Span SpanOf(const Base& base, const std::shared_ptr<CudaFence>& start,
                           const std::shared_ptr<CudaFence>& end, int64_t given_ns, int64_t seen_ns);

 private:
  static constexpr double kRebaseMs = 4000;  // up to there a float32 still has half a microsecond
  mutable Mutex mutex_;
  DeviceClock clock_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Base> base_ ABSL_GUARDED_BY(mutex_);
};

class CudaJob final : public LaunchedJob, public CudaPoint {
 public:
  CudaJob(const Job& job, std::shared_ptr<CudaClock> clock, std::shared_ptr<FigureSlots> slots,
          std::shared_ptr<CudaHolds> holds);

  // ---- Calls while the job is enqueued, by one thread. These throw c10::Error.
  void Start(const c10::cuda::CUDAStream& stream);
  void ReportLoss(const at::Tensor& loss, const c10::cuda::CUDAStream& stream);
  void ReportSquares(const Tensor& limbs, const c10::cuda::CUDAStream& stream);
  void End(const c10::cuda::CUDAStream& stream);
  // Notes a failure on the host. The first counts.
  void Fail(const absl::Status& status);
  const std::shared_ptr<CudaFence>& start() const { return start_; }
  const std::shared_ptr<CudaFence>& end() const { return end_; }

  // ---- Calls once the job has been handed out.
  absl::StatusOr<bool> Reached() override;
  Figures figures() override;
  std::shared_ptr<CudaFence> point() override { return end_; }

 private:
  FigureSlot& slot();
  void Read();

  const Job job_;
  const std::shared_ptr<CudaClock> clock_;
  const std::shared_ptr<FigureSlots> slots_;
  const std::shared_ptr<CudaHolds> holds_;
  const std::shared_ptr<const CudaClock::Base> base_;
  int64_t given_ns_ = 0;
  std::shared_ptr<CudaFence> start_, end_;
  std::shared_ptr<FigureSlot> slot_;
  bool has_loss_ = false, has_squares_ = false;

  Mutex mutex_;
  bool read_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Figures figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_JOB_H_
