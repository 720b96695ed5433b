// Keeps memory that enqueued work of a GPU uses until the work is done.
//
// A tensor's last owner may go while the job or copy that reads it is in flight. Memory that is read on
// another stream than the one in whose order it is freed (blocks of LibTorch's allocator, host memory, memory
// of a transport) is held here until the fence behind its use has been reached. Nothing waits: each call
// releases what has been reached. Memory whose use the device failed to finish is held for ever, which is
// until the process ends. Threads: any.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_HOLDS_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_HOLDS_H_

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "worker/shell/cuda/cuda_event.h"

namespace weft {

class CudaHolds {
 public:
  using Owners = std::vector<std::shared_ptr<void>>;

  void Add(std::shared_ptr<CudaFence> until, Owners owners);
  // Releases owners whose fences have been reached. Do not call it while the calling thread captures.
  void Trim();

 private:
  struct Held {
    std::shared_ptr<CudaFence> until;
    Owners owners;
  };
  Mutex mutex_;
  // Held owners by stream, in its order, so that the first that has not been reached ends the search.
  std::map<cudaStream_t, std::deque<Held>> held_ ABSL_GUARDED_BY(mutex_);
};

// The fence of a copy for another process. A caller that finds it reached has the held memory released. The
// worker's core may wait for the end of the tensor that was copied, and no further job of the rank would
// release it then.
class CopiedFence final : public Fence, public CudaPoint {
 public:
  CopiedFence(std::shared_ptr<CudaFence> copied, std::weak_ptr<CudaHolds> holds)
      : copied_(std::move(copied)), holds_(std::move(holds)) {}

  absl::StatusOr<bool> Reached() override;
  std::shared_ptr<CudaFence> point() override { return copied_; }

 private:
  const std::shared_ptr<CudaFence> copied_;
  const std::weak_ptr<CudaHolds> holds_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_HOLDS_H_
