// Marks points in a GPU's queue of work, without creating or destroying anything on the way of a job.
//
// A CudaPoint is a place in the order of one stream that other streams can wait for: a recorded event.
// CudaFence is the plain one; a launched job (cuda_job.h) has one. Events come from a pool and go back to it.
// A wait for an event keeps to the state of the event when the wait was enqueued, so that the event may be
// used again at once. Invariants: 1. Once reached, or failed, a fence stays so, whatever the device does
// later. 2. Nothing here waits. Threads: any. Ownership: the pools live as long as the process. Failure: of
// the device, as a Status that names it; c10::Error where an event cannot be had or recorded.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_EVENT_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_EVENT_H_

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/memory/fence.h"

namespace weft {

class CudaEventPool {
 public:
  // The kind of an event. Events that only order are cheaper than those that take the time.
  enum class Kind { kOrder, kTimed };
  // Returns the pool of a device, by its number.
  static CudaEventPool& Of(int device, Kind kind);

  cudaEvent_t Take();
  void Return(cudaEvent_t event);

 private:
  explicit CudaEventPool(Kind kind) : kind_(kind) {}
  const Kind kind_;
  Mutex mutex_;
  std::vector<cudaEvent_t> free_ ABSL_GUARDED_BY(mutex_);
};

class CudaFence;

// A Fence with this interface is one that a stream of this process can wait for.
class CudaPoint {
 public:
  virtual ~CudaPoint() = default;
  // Returns null if nothing was enqueued because enqueuing failed.
  virtual std::shared_ptr<CudaFence> point() = 0;
};
// Returns the point where a stream can wait for this fence; null for a fence that is not of a GPU, or was
// never enqueued.
std::shared_ptr<CudaFence> PointOf(Fence& fence);

class CudaFence final : public Fence, public CudaPoint, public std::enable_shared_from_this<CudaFence> {
 public:
  // Records the current place of the stream.
  static std::shared_ptr<CudaFence> Record(const c10::cuda::CUDAStream& stream,
                                           CudaEventPool::Kind kind = CudaEventPool::Kind::kOrder);
  ~CudaFence() override;
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  absl::StatusOr<bool> Reached() override;
  std::shared_ptr<CudaFence> point() override { return shared_from_this(); }

  // Puts all later work of `stream` behind this fence. Does nothing for the same stream.
  void Precede(const c10::cuda::CUDAStream& stream) const;

  cudaEvent_t event() const { return event_; }
  const c10::cuda::CUDAStream& stream() const { return stream_; }

 private:
  CudaFence(const c10::cuda::CUDAStream& stream, CudaEventPool& pool);

  const c10::cuda::CUDAStream stream_;
  CudaEventPool& pool_;
  const cudaEvent_t event_;
  Mutex mutex_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_EVENT_H_
