#include "worker/shell/cuda/cuda_job.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"

namespace weft {

std::shared_ptr<FigureSlot> FigureSlots::Take() {
  FigureSlot* slot = nullptr;
  {
    MutexLock lock(mutex_);
    if (free_.empty()) {
      // Some slots are made at once, and never given back: as many as there are jobs in flight.
      constexpr int kAtOnce = 64;
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
      void* memory = nullptr;
      C10_CUDA_CHECK(cudaHostAlloc(&memory, kAtOnce * sizeof(FigureSlot), cudaHostAllocPortable));
      for (int i = 0; i < kAtOnce; ++i) free_.push_back(static_cast<FigureSlot*>(memory) + i);
    }
    slot = free_.back();
    free_.pop_back();
  }
  return {slot, [self = shared_from_this()](FigureSlot* done) {
            MutexLock lock(self->mutex_);
            self->free_.push_back(done);
          }};
}

CudaClock::CudaClock(const c10::cuda::CUDAStream& stream) {
  const c10::cuda::CUDAGuard guard(stream.device_index());
  stream.synchronize();
  // The stream is idle, so the event is done as soon as it is recorded.
  auto event = CudaFence::Record(stream, CudaEventPool::Kind::kTimed);
  stream.synchronize();
  base_ = std::make_shared<const Base>(Base{std::move(event), MonotonicNow()});
}

std::shared_ptr<const CudaClock::Base> CudaClock::base() const {
  MutexLock lock(mutex_);
  return base_;
}

DeviceClock::Span CudaClock::SpanOf(const Base& base, const std::shared_ptr<CudaFence>& start,
                                    const std::shared_ptr<CudaFence>& end, int64_t given_ns,
                                    int64_t seen_ns) {
  float start_ms = 0, end_ms = 0;
  if (cudaEventElapsedTime(&start_ms, base.event->event(), start->event()) != cudaSuccess ||
      cudaEventElapsedTime(&end_ms, base.event->event(), end->event()) != cudaSuccess) {
    (void)cudaGetLastError();
    return {given_ns, seen_ns};
  }
  MutexLock lock(mutex_);
  if (end_ms > kRebaseMs && base_.get() == &base) {
    base_ =
        std::make_shared<const Base>(Base{end, base.host_ns + static_cast<int64_t>(double{end_ms} * 1e6)});
  }
  return clock_.Map(base.host_ns, start_ms, end_ms, given_ns, seen_ns);
}

CudaJob::CudaJob(const Job& job, std::shared_ptr<CudaClock> clock, std::shared_ptr<FigureSlots> slots,
                 std::shared_ptr<CudaHolds> holds)
    : job_(job),
      clock_(std::move(clock)),
      slots_(std::move(slots)),
      holds_(std::move(holds)),
      base_(clock_->base()) {}

void CudaJob::Start(const c10::cuda::CUDAStream& stream) {
  given_ns_ = MonotonicNow();
  start_ = CudaFence::Record(stream, CudaEventPool::Kind::kTimed);
}

FigureSlot& CudaJob::slot() {
  if (slot_ == nullptr) slot_ = slots_->Take();
  return *slot_;
}

void CudaJob::ReportLoss(const at::Tensor& loss, const c10::cuda::CUDAStream& stream) {
  TORCH_CHECK(loss.is_cuda() && loss.scalar_type() == at::kFloat && loss.numel() == 1,
              "a loss is reported as one float32 of the device");
  C10_CUDA_CHECK(cudaMemcpyAsync(&slot().loss, loss.const_data_ptr(), sizeof(float), cudaMemcpyDeviceToHost,
                                 stream.stream()));
  has_loss_ = true;
}

void CudaJob::ReportSquares(const Tensor& limbs, const c10::cuda::CUDAStream& stream) {
  TORCH_CHECK(limbs.place == MemoryPlace::kDevice && limbs.bytes == SumOfSquares::kBytes,
              "a sum of squares is reported as its limbs in the device's memory");
  C10_CUDA_CHECK(cudaMemcpyAsync(slot().limbs, limbs.data, SumOfSquares::kBytes, cudaMemcpyDeviceToHost,
                                 stream.stream()));
  has_squares_ = true;
}

void CudaJob::End(const c10::cuda::CUDAStream& stream) {
  end_ = CudaFence::Record(stream, CudaEventPool::Kind::kTimed);
  // The device may still write to the slot when nobody asks for the job any more.
  if (slot_ != nullptr) holds_->Add(end_, {slot_});
}

void CudaJob::Fail(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (failure_.ok())
    failure_ = absl::Status(status.code(), absl::StrCat(Describe(job_), ": ", status.message()));
}

// Reads the figures that the device has written, now that the end has been reached. Call without the lock.
void CudaJob::Read() {
  Figures figures;
  const DeviceClock::Span span = clock_->SpanOf(*base_, start_, end_, given_ns_, MonotonicNow());
  figures.start_ns = span.start_ns;
  figures.end_ns = span.end_ns;
  if (has_loss_) figures.loss = slot_->loss;
  if (has_squares_) figures.gradient_norm = SumOfSquares::FromLimbs(slot_->limbs).Norm();
  MutexLock lock(mutex_);
  figures_ = figures;
}

// Returns whether the job has ended. A failure on the host is reported when the device is done with its
// earlier work: until then it may use what the job was given.
absl::StatusOr<bool> CudaJob::Reached() {
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    if (read_) return true;
    failure = failure_;
  }
  if (end_ == nullptr) {
    if (!failure.ok()) return failure;
    Fail(absl::InternalError("was asked for before it had been enqueued"));
    return Reached();
  }
  const absl::StatusOr<bool> reached = end_->Reached();
  if (reached.ok() && !*reached) return false;
  if (!failure.ok()) return failure;
  if (!reached.ok()) {
    // The device reports a failure once, for everything that it was doing.
    Fail(absl::Status(reached.status().code(), absl::StrCat("here, or in a job beside or shortly before it: ",
                                                            reached.status().message())));
    return Reached();
  }
  Read();
  holds_->Trim();
  MutexLock lock(mutex_);
  read_ = true;
  return true;
}

LaunchedJob::Figures CudaJob::figures() {
  MutexLock lock(mutex_);
  if (!read_) {
    std::fprintf(stderr, "%s: its figures were asked for before it was reached\n", Describe(job_).c_str());
    std::abort();
  }
  return figures_;
}

}  // namespace weft
