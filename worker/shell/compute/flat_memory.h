// Provides flat buffers of one device: their memory, arithmetic on them, and the order in which they are
// used.
//
// This is the part of a RankDevice (rank_device.h) that sums of gradients and updates need, free of LibTorch.
// Threads and failure: as RankDevice.
#ifndef WEFT_WORKER_SHELL_COMPUTE_FLAT_MEMORY_H_
#define WEFT_WORKER_SHELL_COMPUTE_FLAT_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/flat_math.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class FlatMemory {
 public:
  virtual ~FlatMemory() = default;

  virtual const FlatMath& math() const = 0;
  // Makes a flat tensor, aligned to 64 bytes, its content undefined.
  virtual absl::StatusOr<Tensor> NewFlat(int64_t elements, MemoryClass memory_class,
                                         DataType type = DataType::kFloat32) = 0;
  // Puts the job's later work behind the tensor's `ready`. Returns the same tensor, whose memory stays after
  // its last copy has gone until the device has done all that the rank gave it before.
  virtual Tensor Await(Tensor tensor) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_FLAT_MEMORY_H_
