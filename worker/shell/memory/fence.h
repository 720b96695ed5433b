// Represents a point in a device's queue of work: whether everything that was enqueued before it has been
// done.
//
// A device that computes beside the host is given work and does it later, in order. A caller that needs the
// result on the host asks the fence and goes on with something else; one that needs it on the same device
// lets the device wait (RankDevice::Await). Nothing here ever waits. Thread-safe.
#ifndef WEFT_WORKER_SHELL_MEMORY_FENCE_H_
#define WEFT_WORKER_SHELL_MEMORY_FENCE_H_

#include "absl/status/statusor.h"

namespace weft {

class Fence {
 public:
  virtual ~Fence() = default;
  // Returns true once the device has come to this point; it stays true. Returns the device's failure if it
  // failed before.
  virtual absl::StatusOr<bool> Reached() = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MEMORY_FENCE_H_
