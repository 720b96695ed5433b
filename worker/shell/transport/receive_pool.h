// Provides memory for tensors that arrive as bytes: it keeps blocks for reuse, because fresh pages cost more
// than the copy.
//
// Sizes are rounded up to classes, four to a doubling. Small blocks are cut from slabs that stay. A large
// block is a segment of its own, given back to the source when more than `idle_limit` bytes of large blocks
// lie unused.
//
// Thread-safe. A block returns to the pool when its last reference goes, on any thread. It keeps the pool,
// and the pool keeps the source, so a tensor may outlive the transport.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_RECEIVE_POOL_H_
#define WEFT_WORKER_SHELL_TRANSPORT_RECEIVE_POOL_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/memory/memory_source.h"

namespace weft {

class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  static std::shared_ptr<ReceivePool> Create(std::shared_ptr<MemorySource> source, size_t idle_limit);
  ~ReceivePool();

  // Returns at least `bytes` (> 0), aligned to 64. ResourceExhausted as the source says.
  absl::StatusOr<std::shared_ptr<void>> Get(size_t bytes);

 private:
  ReceivePool(std::shared_ptr<MemorySource> source, size_t idle_limit);
  absl::StatusOr<void*> Take(size_t size_class) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Return(void* block, size_t size_class);

  const std::shared_ptr<MemorySource> source_;
  const size_t idle_limit_;
  Mutex mutex_;
  std::vector<std::vector<void*>> free_ ABSL_GUARDED_BY(mutex_);  // by size class
  std::vector<void*> slabs_ ABSL_GUARDED_BY(mutex_);
  char* slab_next_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t slab_remaining_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // unused bytes of large blocks
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_RECEIVE_POOL_H_
