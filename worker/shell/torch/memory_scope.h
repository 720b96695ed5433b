// Says, for the running thread, to which rank and class LibTorch's allocations belong.
//
// While a scope lives, every CPU tensor that LibTorch makes on this thread lies in the rank's segments and is
// charged to the class; outside of any scope ordinary memory serves. Scopes nest; each must end on the thread
// that began it.
#ifndef WEFT_WORKER_SHELL_TORCH_MEMORY_SCOPE_H_
#define WEFT_WORKER_SHELL_TORCH_MEMORY_SCOPE_H_

#include "worker/shell/compute/segment_allocator.h"

namespace weft {

class MemoryScope {
 public:
  // `allocator` is not null and outlives the scope.
  MemoryScope(SegmentAllocator* allocator, MemoryClass memory_class, Tallied tallied = Tallied::kNo);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  // Returns the innermost scope of this thread, or null.
  static const MemoryScope* Current();
  SegmentAllocator* allocator() const { return allocator_; }
  MemoryClass memory_class() const { return memory_class_; }
  Tallied tallied() const { return tallied_; }

 private:
  SegmentAllocator* const allocator_;
  const MemoryClass memory_class_;
  const Tallied tallied_;
  const MemoryScope* const outer_;
};

// Routes LibTorch's CPU allocations through the scopes, once a process; later calls do nothing. Tensors made
// before keep their memory.
void InstallTorchAllocator();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_MEMORY_SCOPE_H_
