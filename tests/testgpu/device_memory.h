// Provides the memory of the test device: addresses that the host cannot touch, and the bytes behind them.
//
// A device address lies in a region without access: a host that dereferences it ends the process, as with a
// GPU's. The bytes are in a second region, the mirror, at the same place, which only the test device's own
// kernels and copies use. Bookkeeping is outside of both.
//
// Invariants:
//   1. Free memory holds 0xFF, floats that are not numbers: a reader of memory that was given back, or never
//      written, computes with them.
//   2. A block that was freed is used again only when the queues of all other ranks that used it have come to
//      that point, and by another stream than its own only when that of its own rank has.
//   3. A class's live bytes are the sum of the requested bytes, rounded up to 64, over its live blocks.
//
// Thread-safe. A process has one, which lives as long as the process.
#ifndef WEFT_TESTS_TESTGPU_DEVICE_MEMORY_H_
#define WEFT_TESTS_TESTGPU_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/testgpu/device_queue.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/segment_allocator.h"

namespace weft::testgpu {

// The owner of a block: a rank, or nobody (rank -1).
class MemoryOwner {
 public:
  MemoryOwner(int rank, std::shared_ptr<QueueProgress> progress)
      : rank_(rank), progress_(std::move(progress)) {}
  int rank() const { return rank_; }

 private:
  friend class DeviceMemory;
  const int rank_;
  const std::shared_ptr<QueueProgress> progress_;  // null: nobody's
  // Bytes by class, under the memory's lock.
  BytesByClass live_{}, peak_{}, tallied_{};
  int64_t most_bytes_ = 0;
  uint32_t tally_ = 0;
};

class DeviceMemory {
 public:
  static constexpr size_t kGranule = 512;

  static DeviceMemory& Instance();

  // Restricts the live bytes to so many, and makes the n-th allocation from now on fail. 0: neither.
  void Restrict(int64_t most_bytes, int64_t failing_allocation);

  struct Request {
    size_t bytes = 0;
    std::shared_ptr<MemoryOwner> owner;
    MemoryClass memory_class = MemoryClass::kBuffers;
    Tallied tallied = Tallied::kNo;
    int stream = 0;
    std::shared_ptr<DeviceEvent> writer;  // end of the job that asks, if one does
  };
  // Allocates a block. ResourceExhausted that names class and bytes.
  absl::StatusOr<void*> Allocate(const Request& request);
  // Frees a block of `Allocate`; on any thread.
  static void Free(void* block);

  struct Block {
    const char* begin = nullptr;
    std::shared_ptr<MemoryOwner> owner;
    int stream = 0;
    std::shared_ptr<DeviceEvent> arriving;  // a copy into it that may not have been done
    // True if the stream that uses it comes behind that anyway.
    bool in_order = false;
    std::shared_ptr<DeviceEvent> writer;              // the end of the job that wrote it last
    std::vector<std::shared_ptr<MemoryOwner>> users;  // other ranks that have awaited it

    bool IsUsedBy(const std::shared_ptr<MemoryOwner>& rank) const;
  };
  // Returns the live block that has [data, data + bytes); OutOfRange if there is none.
  absl::StatusOr<Block> Find(const void* data, size_t bytes);
  void SetArriving(const void* data, std::shared_ptr<DeviceEvent> event, bool in_order);
  void SetWriter(const void* data, std::shared_ptr<DeviceEvent> event);
  void AddUser(const void* data, const std::shared_ptr<MemoryOwner>& rank);

  bool Contains(const void* address) const;
  // Returns the place of the bytes of a device address; null for null.
  template <typename T>
  T* Mirror(T* address) const {
    if (address == nullptr) return nullptr;
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) + mirror_);
  }

  BytesByClass live(const MemoryOwner& owner);
  BytesByClass peak(const MemoryOwner& owner);
  int64_t most_bytes(const MemoryOwner& owner);
  void BeginTally(MemoryOwner& owner);
  int64_t tally(const MemoryOwner& owner, MemoryClass memory_class);

 private:
  struct Live {
    size_t bytes = 0;     // size of the block
    int64_t charged = 0;  // bytes charged to its owner
    MemoryClass memory_class = MemoryClass::kBuffers;
    uint32_t tally = 0;  // tally; 0: none
    Block block;
  };
  // A place in a queue.
  struct Point {
    std::shared_ptr<QueueProgress> progress;
    uint64_t enqueued = 0;

    bool IsPassed() const { return progress == nullptr || progress->done >= enqueued; }
  };
  struct FreeBlock {
    char* begin = nullptr;
    std::shared_ptr<MemoryOwner> owner;
    int stream = 0;
    Point own;
    std::vector<Point> others;
  };

  DeviceMemory();
  static size_t SizeOf(size_t bytes);
  static Point Now(const MemoryOwner& owner);
  void Release(char* begin);
  char* TakeFree(size_t size, const Request& request);
  Live* FindLocked(const void* data);

  char* begin_ = nullptr;
  uintptr_t mirror_ = 0;  // distance from the device's addresses

  std::mutex mutex_;
  size_t used_ = 0;  // of the region, so far
  int64_t live_ = 0, most_ = 0, allocations_ = 0, failing_ = 0;
  std::map<const char*, Live> blocks_;             // by address
  std::map<size_t, std::vector<FreeBlock>> free_;  // by size
};

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_DEVICE_MEMORY_H_
