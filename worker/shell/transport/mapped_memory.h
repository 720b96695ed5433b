// Provides memory that the other processes of this machine can read in place.
//
// MappedMemory hands out segments that live in anonymous memory files (memfd). A segment has no name in any
// file system, so nothing is left behind however the process ends. A peer opens it through
// /proc/<pid>/fd/<n>, checks that it is the intended file and that it can never shrink (sealed), and maps it
// read-only: a bug of a consumer cannot change a producer's tensors, and no message can make a read fault.
//
// PeerSegments is the consumer's side: the mapped segments of other processes, each mapped once.
//
// Threads: MappedMemory is thread-safe, PeerSegments is not. A PeerMapping may be dropped on any thread.
// Ownership: a mapping keeps the pages alive by itself, also after the producer freed the segment or died.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_MAPPED_MEMORY_H_
#define WEFT_WORKER_SHELL_TRANSPORT_MAPPED_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

class MappedMemory final : public MemorySource {
 public:
  ~MappedMemory() override;

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* segment, size_t bytes) override;

  struct Place {
    SegmentRef segment;
    uint64_t offset = 0;
  };
  // Returns the segment and the offset of [data, data + bytes), if it lies in one segment of this source.
  std::optional<Place> Find(const void* data, size_t bytes) const;

  // Returns the ids of the segments freed since the last call; the caller tells the peers to unmap them.
  std::vector<uint64_t> TakeFreed();

 private:
  mutable Mutex mutex_;
  absl::btree_map<uintptr_t, SegmentRef> segments_ ABSL_GUARDED_BY(mutex_);  // by address
  std::vector<uint64_t> freed_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_freed_{false};  // lets TakeFreed skip the lock
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

// A read-only view of a segment of another process.
class PeerMapping {
 public:
  PeerMapping(void* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~PeerMapping();
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;
  char* base() const { return static_cast<char*>(base_); }
  size_t bytes() const { return bytes_; }

 private:
  void* base_;
  size_t bytes_;
};

class PeerSegments {
 public:
  // Maps the segment of process `pid`, or returns its existing mapping. NotFound if it is gone,
  // PermissionDenied if this process may not open it, InvalidArgument if it is not what the reference says,
  // ResourceExhausted if mapping failed.
  absl::StatusOr<std::shared_ptr<PeerMapping>> Map(uint64_t sender, int pid, const SegmentRef& segment);
  void Forget(uint64_t sender, uint64_t segment_id);
  void ForgetAll(uint64_t sender);

 private:
  absl::btree_map<std::pair<uint64_t, uint64_t>, std::shared_ptr<PeerMapping>> mappings_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_MAPPED_MEMORY_H_
