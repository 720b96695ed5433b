// Provides large pieces of memory: the seam between the allocator of tensors and the transport that lets
// peers read them.
//
// The UCX transport hands out memory that is registered once and mapped by the other processes of the
// machine; the plain source hands out ordinary memory. The allocator (compute/segment_allocator.h) cuts
// segments into tensors. Thread-safe. Segments live until Free or the source's end.
#ifndef WEFT_WORKER_SHELL_MEMORY_MEMORY_SOURCE_H_
#define WEFT_WORKER_SHELL_MEMORY_MEMORY_SOURCE_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace weft {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns at least `bytes` of writable memory aligned to 4096. ResourceExhausted, with bytes asked and
  // their limit, when there is none.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Gives back `segment`, which came from Allocate of this source with the same size.
  virtual void Free(void* segment, size_t bytes) = 0;
};

// Takes memory from the system, of a multiple of `alignment` bytes; std::free gives it back. A large block
// lies on large pages where there are any: filling it for the first time, as the copy of a snapshot does,
// takes several times as long on small ones. Returns null if there is no memory.
void* AllocatePages(size_t alignment, size_t bytes);

// Ordinary page-aligned memory (AllocatePages).
class PlainMemory final : public MemorySource {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* segment, size_t bytes) override;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MEMORY_MEMORY_SOURCE_H_
