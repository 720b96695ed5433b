// Gives memory back when a rank's GPU has done with it, not when the rank drops it. This concerns memory that
// is not freed in the order of the stream that uses it: memory of other streams, ranks, processes or the
// transport.
//
// A rank drops a tensor when it has enqueued the last work that uses it, which may be in a later job than the
// one that awaited it (a backward reads what its forward did). The sender, or the next tensor that arrives,
// would then write where the GPU still reads. So the owner of such a tensor is wrapped: dropped owners
// collect here, and each job that ends takes them and keeps them until it has been done. Thread-safe: tensors
// may be dropped on any thread. After this object is gone they are released at once.
#ifndef WEFT_WORKER_SHELL_CUDA_LATE_RELEASE_H_
#define WEFT_WORKER_SHELL_CUDA_LATE_RELEASE_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class LateRelease {
 public:
  // Returns the same tensor, whose owner comes to TakeDropped when its last copy is gone. Guarding a tensor
  // once is enough.
  Tensor Guard(Tensor tensor);
  // Returns the owners that have been dropped since the last call.
  std::vector<std::shared_ptr<void>> TakeDropped();

 private:
  struct Dropped {
    Mutex mu;
    std::vector<std::shared_ptr<void>> owners ABSL_GUARDED_BY(mu);
  };
  struct Guarded;
  const std::shared_ptr<Dropped> dropped_ = std::make_shared<Dropped>();
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_LATE_RELEASE_H_
