#include "worker/shell/cuda/cuda_event.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <utility>

#include "worker/shell/cuda/cuda_status.h"

namespace weft {

CudaEventPool& CudaEventPool::Of(int device, Kind kind) {
  static Mutex* const mutex = new Mutex;
  static auto* const pools = new std::map<std::pair<int, Kind>, CudaEventPool*>;
  MutexLock lock(*mutex);
  CudaEventPool*& pool = (*pools)[{device, kind}];
  if (pool == nullptr) pool = new CudaEventPool(kind);
  return *pool;
}

cudaEvent_t CudaEventPool::Take() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(
      cudaEventCreateWithFlags(&event, kind_ == Kind::kTimed ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}

void CudaEventPool::Return(cudaEvent_t event) {
  MutexLock lock(mutex_);
  free_.push_back(event);
}

CudaFence::CudaFence(const c10::cuda::CUDAStream& stream, CudaEventPool& pool)
    : stream_(stream), pool_(pool), event_(pool.Take()) {}

CudaFence::~CudaFence() { pool_.Return(event_); }

std::shared_ptr<CudaFence> PointOf(Fence& fence) {
  auto* const point = dynamic_cast<CudaPoint*>(&fence);
  return point != nullptr ? point->point() : nullptr;
}

std::shared_ptr<CudaFence> CudaFence::Record(const c10::cuda::CUDAStream& stream, CudaEventPool::Kind kind) {
  // An event belongs to the thread's device when it is made, and that must be the stream's.
  c10::cuda::CUDAGuard guard(stream.device_index());
  CudaEventPool& pool = CudaEventPool::Of(stream.device_index(), kind);
  std::shared_ptr<CudaFence> fence(new CudaFence(stream, pool));
  C10_CUDA_CHECK(cudaEventRecord(fence->event_, stream.stream()));
  return fence;
}

absl::StatusOr<bool> CudaFence::Reached() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (reached_) return true;
  const cudaError_t error = Asked(cudaEventQuery(event_));
  if (error == cudaErrorNotReady) return false;
  if (error != cudaSuccess) {
    failure_ = CudaStatus(error, stream_.device_index(), "the device's work failed");
    return failure_;
  }
  reached_ = true;
  return true;
}

void CudaFence::Precede(const c10::cuda::CUDAStream& stream) const {
  if (stream == stream_) return;
  c10::cuda::CUDAGuard guard(stream.device_index());
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream.stream(), event_, cudaEventWaitDefault));
}

}  // namespace weft
