// Memory of other processes, or of the transport, that a rank's device computes on: given back when the
// device has done with it, not when the rank drops it.
//
// A rank drops a tensor when it has launched the last job that uses it; the sender, or the next tensor that
// arrives, would then write where the device still reads. So the owner of such a tensor is wrapped: what is
// dropped collects here, and whoever launches jobs takes it and keeps it until those have ended. Thread-safe:
// tensors may be dropped on any thread, and after this is gone, when they are released at once.
#ifndef WEFT_WORKER_SHELL_LATE_RELEASE_H_
#define WEFT_WORKER_SHELL_LATE_RELEASE_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/wire/mutex.h"
#include "worker/shell/tensor.h"

namespace weft {

class LateRelease {
 public:
  // The same tensor, whose owner comes to TakeDropped when its last copy is gone.
  Tensor Guard(Tensor tensor);
  // The owners of what has been dropped since the last call; null if there is nothing.
  std::shared_ptr<void> TakeDropped();

 private:
  struct Dropped {
    Mutex mu;
    std::vector<std::shared_ptr<void>> owners ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Dropped> dropped_ = std::make_shared<Dropped>();
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LATE_RELEASE_H_
