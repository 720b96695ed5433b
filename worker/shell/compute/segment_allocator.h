// Cuts a rank's large segments into the memory of its tensors, and counts the bytes by class.
//
// All tensors of a rank lie in segments of a MemorySource, so that peers on the machine can read a boundary
// tensor in place. Segments are kept while the allocator lives: fresh pages cost more than the copy that they
// would receive. The structure is two-level segregated fit (TLSF): constant time, good fit, immediate
// coalescing, one header of 64 bytes before each block.
//
// Invariants:
//   1. Blocks are aligned to 64 bytes, never overlap, and lie in segments of the source.
//   2. live_bytes()[c] is the sum over live blocks of class c of their size rounded up to 64; peak_bytes()[c]
//      is the largest value it had. Blocks that are tallied as buffers are in no peak until their tally is
//      charged. Then blocks that stay are in the peak of their class, and freed ones in that of buffers. So
//      the peaks add up to no more than was alive at a time for the sake of that tally.
//   3. Neighbouring free blocks do not exist: they are one.
//
// Threads: every method may be called from any thread. Ownership: shared; each live block holds a share, so
// that a tensor may outlive the rank that made it. The source must outlive all of them. Failure: Allocate
// says ResourceExhausted with bytes, class and the source's reason; a corrupted header or a double free
// aborts.
#ifndef WEFT_WORKER_SHELL_COMPUTE_SEGMENT_ALLOCATOR_H_
#define WEFT_WORKER_SHELL_COMPUTE_SEGMENT_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/job_meter.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// Says whether an allocation belongs to the present tally.
enum class Tallied : bool { kNo, kYes };

class SegmentAllocator : public std::enable_shared_from_this<SegmentAllocator> {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kSegmentBytes = size_t{8} << 20;

  static std::shared_ptr<SegmentAllocator> Create(MemorySource& source);
  ~SegmentAllocator();
  SegmentAllocator(const SegmentAllocator&) = delete;
  SegmentAllocator& operator=(const SegmentAllocator&) = delete;

  // Returns a block of at least `bytes` (0 counts as 1), charged to `memory_class` until it is freed.
  absl::StatusOr<void*> Allocate(size_t bytes, MemoryClass memory_class, Tallied tallied = Tallied::kNo);
  // Returns ordinary memory, uncounted, aligned alike, that Free takes too; null if there is none.
  static void* AllocateOutside(size_t bytes);
  // Frees `block`, which came from AllocateOutside, or from Allocate of any SegmentAllocator; its header says
  // which.
  static void Free(void* block);

  BytesByClass live_bytes() const;
  BytesByClass peak_bytes() const;
  // Returns the most bytes of all classes that were alive at a time.
  int64_t most_bytes() const { return most_bytes_.load(std::memory_order_relaxed); }
  // Begins to count tallied allocations separately from here on, until the next tally begins.
  void BeginTally();
  // Returns the bytes of the class that were allocated so since then and are still alive.
  int64_t tally(MemoryClass memory_class) const;
  // Charges the blocks of the present tally that are still alive to `memory_class`, whatever they were
  // charged to, and the most that was alive beside them to the peak of buffers.
  void ChargeTally(MemoryClass memory_class);
  // Begins to measure a job, and returns the figures of the present one.
  void BeginJob();
  JobBytes job_bytes() const;
  // Returns the bytes of all segments taken from the source.
  size_t segment_bytes() const;
  // Walks all segments and aborts where a structure contradicts another. For tests.
  void CheckConsistency();

 private:
  struct Header;
  struct Segment {
    char* begin;
    size_t bytes;
  };
  // Sizes are in units of kAlignment; a class of the first level per power of two, 16 of the second within
  // it.
  static constexpr int kSecondLevelBits = 4;
  static constexpr int kSecondLevels = 1 << kSecondLevelBits;
  static constexpr int kFirstLevels = 40;
  struct Class {
    int first, second;
  };

  explicit SegmentAllocator(MemorySource& source) : source_(source) {}
  static Class ClassOf(uint64_t units);
  Header* FindInOwnClass(uint64_t units, int limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Header* TakeFit(uint64_t units) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Header* Grow(uint64_t units, MemoryClass memory_class, absl::Status* failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SplitTail(Header* block, uint64_t units) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Insert(Header* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Header* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(Header* block);
  void JoinTally(Header* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveTally(Header* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RaisePeak(MemoryClass c, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Charge(MemoryClass c, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Live(MemoryClass c) const { return live_[static_cast<int>(c)].load(std::memory_order_relaxed); }

  MemorySource& source_;
  // Bytes by class; written under mutex_, read by anyone.
  std::array<std::atomic<int64_t>, kMemoryClasses> live_{}, peak_{};
  std::atomic<int64_t> most_bytes_{0};

  mutable Mutex mutex_;
  JobMeter meter_ ABSL_GUARDED_BY(mutex_);
  int64_t live_sum_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mutex_);
  size_t segment_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t tally_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the present tally, 0 before the first
  BytesByClass tally_bytes_ ABSL_GUARDED_BY(mutex_){};
  int64_t tally_peak_ ABSL_GUARDED_BY(mutex_) = 0;     // most bytes of the present tally alive at a time
  Header* tallied_ ABSL_GUARDED_BY(mutex_) = nullptr;  // first of the live blocks of the present tally
  uint64_t live_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<SegmentAllocator> self_ ABSL_GUARDED_BY(mutex_);  // held while blocks live
  uint64_t first_bits_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<uint32_t, kFirstLevels> second_bits_ ABSL_GUARDED_BY(mutex_){};
  std::array<std::array<Header*, kSecondLevels>, kFirstLevels> free_ ABSL_GUARDED_BY(mutex_){};
};

// Makes a flat tensor in a block of `allocator`, its content undefined.
absl::StatusOr<Tensor> NewFlat(SegmentAllocator& allocator, int64_t elements, MemoryClass memory_class,
                               DataType type = DataType::kFloat32);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_SEGMENT_ALLOCATOR_H_
