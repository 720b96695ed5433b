// Keeps the sources of a job's copies to the host until the job's stream is behind the copies.
//
// The copied memory may be used again in the order of the job's stream once that stream waits for the copy.
// Letting it go only when the copy is done would take more memory the further the host enqueues ahead;
// waiting for each copy at once would leave nothing to overlap. So a bounded number of copies is on its way.
// One thread: that of the job.
#ifndef WEFT_WORKER_SHELL_CUDA_PENDING_HOST_COPIES_H_
#define WEFT_WORKER_SHELL_CUDA_PENDING_HOST_COPIES_H_

#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <deque>
#include <memory>

#include "worker/shell/cuda/cuda_event.h"
#include "worker/shell/cuda/cuda_holds.h"

namespace weft {

class PendingHostCopies {
 public:
  // Adds a source. Lets go of sources whose copies are done, and of the oldest of too many, having put
  // `stream` behind their copies. So a forward that the host enqueues far ahead of the device takes no more
  // memory than one that waits for its copies, and none waits. c10::Error.
  void Add(std::shared_ptr<CudaFence> copied, std::shared_ptr<void> source, size_t bytes,
           const c10::cuda::CUDAStream& stream);
  // Hands the remaining sources to `holds` at the end of the job, until they have been copied.
  void HoldRest(CudaHolds& holds);
  // Returns the remaining sources, to be kept for ever.
  CudaHolds::Owners TakeSources();

 private:
  struct Copy {
    std::shared_ptr<CudaFence> copied;
    std::shared_ptr<void> source;
    size_t bytes;
  };
  std::deque<Copy> pending_;
  size_t bytes_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_PENDING_HOST_COPIES_H_
