// Provides large pieces of memory that a GPU copies to and from beside the host's work: page-locked host
// memory, its own, or registered memory of another source that other processes map; and the GPU's memory
// itself, for a transport.
//
// A copy from or to memory that is not page-locked waits in the driver, so all host memory that jobs copy
// with comes from here, cut by SegmentAllocator. Locking pages is slow and may wait for the device: it
// happens while a rank grows to its working size, and then no more. Threads: any. Ownership: sources outlive
// their segments. Failure: ResourceExhausted.
#ifndef WEFT_WORKER_SHELL_CUDA_PINNED_MEMORY_H_
#define WEFT_WORKER_SHELL_CUDA_PINNED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class PinnedMemory final : public MemorySource {
 public:
  explicit PinnedMemory(int device) : device_(device) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* segment, size_t bytes) override;

 private:
  const int device_;
};

// Hands out segments of `source`, page-locked while they are out. Another library may have locked one before,
// as UCX does with memory that it registers; then the lock is left to it.
class RegisteredMemory final : public MemorySource {
 public:
  RegisteredMemory(int device, MemorySource& source) : device_(device), source_(source) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* segment, size_t bytes) override;

 private:
  const int device_;
  MemorySource& source_;
  Mutex mutex_;
  std::set<const void*> locked_by_others_ ABSL_GUARDED_BY(mutex_);
};

// Hands out whole allocations of the driver, which other processes can map (CUDA IPC). LibTorch knows nothing
// of them. When the driver has no more memory, LibTorch gives back what it keeps unused, waiting for the
// device.
class DeviceSegments final : public MemorySource {
 public:
  explicit DeviceSegments(int device) : device_(device) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* segment, size_t bytes) override;

 private:
  const int device_;
};

// Cuts segments of a source into host tensors, which outlive the arena's last share as long as they are used.
class HostArena : public std::enable_shared_from_this<HostArena> {
 public:
  explicit HostArena(std::unique_ptr<MemorySource> source);
  // Makes a tensor, charged to class host. Its content is undefined.
  absl::StatusOr<Tensor> New(const TensorShape& shape, size_t bytes);
  const SegmentAllocator& allocator() const { return *allocator_; }

 private:
  const std::unique_ptr<MemorySource> source_;
  const std::shared_ptr<SegmentAllocator> allocator_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_PINNED_MEMORY_H_
