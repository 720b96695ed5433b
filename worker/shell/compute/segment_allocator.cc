#include "worker/shell/compute/segment_allocator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_format.h"

namespace weft {

// The header before each block; the blocks of a segment follow one another and end with a header of size 0.
struct SegmentAllocator::Header {
  static constexpr uint32_t kFree = 0x66726565;  // "free"
  static constexpr uint32_t kUsed = 0x75736564;  // "used"
  uint32_t mark;
  MemoryClass memory_class;
  uint64_t units;           // units of the payload
  uint64_t charged;         // bytes counted for the block while it is used
  Header* before;           // neighbour before it in memory, null for a segment's first
  SegmentAllocator* owner;  // null for a block outside of segments
  Header *next, *previous;  // neighbours in its free list, or among the live blocks of its tally
  uint32_t tally;           // tally in which it was allocated, 0 for none

  char* payload() { return reinterpret_cast<char*>(this) + kAlignment; }
  Header* after() { return reinterpret_cast<Header*>(payload() + units * kAlignment); }
};

namespace {

constexpr size_t kMax = size_t{1} << 44;  // 16 TiB: far beyond any machine, far below overflow

[[noreturn]] void Die(const char* what, const void* where) {
  std::fprintf(stderr, "segment allocator: %s at %p\n", what, where);
  std::abort();
}

}  // namespace

std::shared_ptr<SegmentAllocator> SegmentAllocator::Create(MemorySource& source) {
  static_assert(sizeof(Header) <= kAlignment);
  return std::shared_ptr<SegmentAllocator>(new SegmentAllocator(source));
}

SegmentAllocator::~SegmentAllocator() {
  for (const Segment& s : segments_) source_.Free(s.begin, s.bytes);
}

SegmentAllocator::Class SegmentAllocator::ClassOf(uint64_t units) {
  if (units < kSecondLevels) return {0, static_cast<int>(units)};
  const int log = 63 - absl::countl_zero(units);
  return {log - kSecondLevelBits + 1,
          static_cast<int>((units >> (log - kSecondLevelBits)) & (kSecondLevels - 1))};
}

void SegmentAllocator::Insert(Header* block) {
  const Class c = ClassOf(block->units);
  Header*& head = free_[c.first][c.second];
  block->mark = Header::kFree;
  block->previous = nullptr;
  block->next = head;
  if (head != nullptr) head->previous = block;
  head = block;
  first_bits_ |= uint64_t{1} << c.first;
  second_bits_[c.first] |= uint32_t{1} << c.second;
}

void SegmentAllocator::Remove(Header* block) {
  if (block->mark != Header::kFree) Die("a free block's header was overwritten", block);
  const Class c = ClassOf(block->units);
  if (block->next != nullptr) block->next->previous = block->previous;
  if (block->previous != nullptr) {
    block->previous->next = block->next;
    return;
  }
  free_[c.first][c.second] = block->next;
  if (block->next != nullptr) return;
  second_bits_[c.first] &= ~(uint32_t{1} << c.second);
  if (second_bits_[c.first] == 0) first_bits_ &= ~(uint64_t{1} << c.first);
}

// Returns the tightest of the first `limit` blocks of the class of `units` that fit.
SegmentAllocator::Header* SegmentAllocator::FindInOwnClass(uint64_t units, int limit) {
  const Class c = ClassOf(units);
  Header* best = nullptr;
  for (Header* b = free_[c.first][c.second]; b != nullptr && limit > 0; b = b->next, --limit) {
    if (b->units == units) return b;
    if (b->units > units && (best == nullptr || b->units < best->units)) best = b;
  }
  return best;
}

// Takes a block that fits. Training repeats its sizes, so a block of the same size is tried first; then any
// block of the next larger class that is not empty, each of which fits; then, before a new segment, all of
// the own class.
SegmentAllocator::Header* SegmentAllocator::TakeFit(uint64_t units) {
  constexpr int kTries = 4;
  Header* block = FindInOwnClass(units, kTries);
  if (block == nullptr) {
    Class c = ClassOf(units);
    uint32_t second = second_bits_[c.first] & (~uint32_t{1} << c.second);
    if (second == 0) {
      const uint64_t first = first_bits_ & (~uint64_t{1} << c.first);
      if (first != 0) {
        c.first = absl::countr_zero(first);
        second = second_bits_[c.first];
      }
    }
    block = second != 0 ? free_[c.first][absl::countr_zero(second)]
                        : FindInOwnClass(units, std::numeric_limits<int>::max());
  }
  if (block != nullptr) Remove(block);
  return block;
}

SegmentAllocator::Header* SegmentAllocator::Grow(uint64_t units, MemoryClass memory_class,
                                                 absl::Status* failure) {
  constexpr size_t kPage = 4096;
  const size_t wanted = static_cast<size_t>(units + 2) * kAlignment;  // with its header and the end mark
  const size_t bytes = std::max(kSegmentBytes, (wanted + kPage - 1) / kPage * kPage);
  absl::StatusOr<void*> memory = source_.Allocate(bytes);
  if (!memory.ok()) {
    *failure = absl::ResourceExhaustedError(
        absl::StrFormat("%d bytes for %s: %s (the rank holds %d bytes of segments)", units * kAlignment,
                        MemoryClassName(memory_class), memory.status().message(), segment_bytes_));
    return nullptr;
  }
  segments_.push_back({static_cast<char*>(*memory), bytes});
  segment_bytes_ += bytes;
  Header* block = static_cast<Header*>(*memory);
  *block = {Header::kFree, {}, bytes / kAlignment - 2, 0, nullptr, this, nullptr, nullptr};
  Header* end = block->after();
  *end = {Header::kUsed, {}, 0, 0, block, this, nullptr, nullptr};
  return block;
}

// Gives the part of `block` beyond `units` back, if it can hold a block.
void SegmentAllocator::SplitTail(Header* block, uint64_t units) {
  if (block->units < units + 2) return;
  Header* after = block->after();
  const uint64_t rest = block->units - units - 1;
  block->units = units;
  Header* tail = block->after();
  *tail = {Header::kFree, {}, rest, 0, block, this, nullptr, nullptr};
  after->before = tail;
  Insert(tail);
}

void SegmentAllocator::Charge(MemoryClass c, int64_t bytes) {
  const int i = static_cast<int>(c);
  const int64_t live = live_[i].load(std::memory_order_relaxed) + bytes;
  live_[i].store(live, std::memory_order_relaxed);
  RaisePeak(c, live - (c == MemoryClass::kBuffers ? tally_bytes_[i] : 0));
  meter_.Note(Live(MemoryClass::kBuffers), Live(MemoryClass::kActivations));
  live_sum_ += bytes;
  if (live_sum_ > most_bytes()) most_bytes_.store(live_sum_, std::memory_order_relaxed);
}

void SegmentAllocator::RaisePeak(MemoryClass c, int64_t bytes) {
  std::atomic<int64_t>& peak = peak_[static_cast<int>(c)];
  if (bytes > peak.load(std::memory_order_relaxed)) peak.store(bytes, std::memory_order_relaxed);
}

void SegmentAllocator::JoinTally(Header* block) {
  tally_bytes_[static_cast<int>(block->memory_class)] += static_cast<int64_t>(block->charged);
  tally_peak_ = std::max(tally_peak_, std::accumulate(tally_bytes_.begin(), tally_bytes_.end(), int64_t{0}));
  block->previous = nullptr;
  block->next = tallied_;
  if (tallied_ != nullptr) tallied_->previous = block;
  tallied_ = block;
}

void SegmentAllocator::LeaveTally(Header* block) {
  tally_bytes_[static_cast<int>(block->memory_class)] -= static_cast<int64_t>(block->charged);
  if (block->next != nullptr) block->next->previous = block->previous;
  (block->previous != nullptr ? block->previous->next : tallied_) = block->next;
}

absl::StatusOr<void*> SegmentAllocator::Allocate(size_t bytes, MemoryClass memory_class, Tallied tallied) {
  if (bytes > kMax) {
    return absl::ResourceExhaustedError(absl::StrFormat("a tensor of %d bytes for %s is beyond any memory",
                                                        bytes, MemoryClassName(memory_class)));
  }
  const uint64_t units = bytes == 0 ? 1 : (bytes + kAlignment - 1) / kAlignment;
  MutexLock lock(mutex_);
  Header* block = TakeFit(units);
  if (block == nullptr) {
    absl::Status failure;
    block = Grow(units, memory_class, &failure);
    if (block == nullptr) return failure;
  }
  SplitTail(block, units);
  block->mark = Header::kUsed;
  block->memory_class = memory_class;
  block->charged = units * kAlignment;
  block->tally = tallied == Tallied::kYes ? tally_ : 0;
  if (block->tally != 0) JoinTally(block);
  Charge(memory_class, static_cast<int64_t>(block->charged));
  if (live_blocks_++ == 0) self_ = shared_from_this();
  return block->payload();
}

void* SegmentAllocator::AllocateOutside(size_t bytes) {
  if (bytes > kMax) return nullptr;
  const uint64_t units = (bytes + kAlignment - 1) / kAlignment;
  auto* header = static_cast<Header*>(AllocatePages(kAlignment, (units + 1) * kAlignment));
  if (header == nullptr) return nullptr;
  *header = {Header::kUsed, {}, units, 0, nullptr, nullptr, nullptr, nullptr};
  return header->payload();
}

void SegmentAllocator::Free(void* block) {
  if (block == nullptr) return;
  Header* header = reinterpret_cast<Header*>(static_cast<char*>(block) - kAlignment);
  if (header->mark != Header::kUsed) Die("freed twice, or its header was overwritten", block);
  if (header->owner != nullptr) {
    header->owner->Release(header);
  } else {
    header->mark = 0;
    std::free(header);
  }
}

void SegmentAllocator::Release(Header* block) {
  std::shared_ptr<SegmentAllocator> last;  // dropped after the lock: it may end this object
  MutexLock lock(mutex_);
  Charge(block->memory_class, -static_cast<int64_t>(block->charged));
  if (block->tally != 0 && block->tally == tally_) LeaveTally(block);
  Header* after = block->after();
  if (after->mark == Header::kFree) {
    Remove(after);
    block->units += after->units + 1;
    block->after()->before = block;
  }
  if (Header* before = block->before; before != nullptr && before->mark == Header::kFree) {
    Remove(before);
    before->units += block->units + 1;
    before->after()->before = before;
    block->mark = 0;
    block = before;
  }
  Insert(block);
  if (--live_blocks_ == 0) last = std::move(self_);
}

absl::StatusOr<Tensor> NewFlat(SegmentAllocator& allocator, int64_t elements, MemoryClass memory_class,
                               DataType type) {
  const size_t bytes = static_cast<size_t>(elements) * ElementBytes(type);
  absl::StatusOr<void*> block = allocator.Allocate(bytes, memory_class);
  if (!block.ok()) return block.status();
  const TensorShape shape{type, 1, {elements}};
  return Tensor{shape, *block, bytes, std::shared_ptr<void>(*block, &SegmentAllocator::Free)};
}

BytesByClass SegmentAllocator::live_bytes() const {
  BytesByClass bytes{};
  for (int i = 0; i < kMemoryClasses; ++i) bytes[i] = live_[i].load(std::memory_order_relaxed);
  return bytes;
}

BytesByClass SegmentAllocator::peak_bytes() const {
  BytesByClass bytes{};
  for (int i = 0; i < kMemoryClasses; ++i) bytes[i] = peak_[i].load(std::memory_order_relaxed);
  return bytes;
}

void SegmentAllocator::BeginTally() {
  MutexLock lock(mutex_);
  if (++tally_ == 0) tally_ = 1;
  tally_bytes_.fill(0);
  tally_peak_ = 0;
  tallied_ = nullptr;
}

int64_t SegmentAllocator::tally(MemoryClass memory_class) const {
  MutexLock lock(mutex_);
  return tally_bytes_[static_cast<int>(memory_class)];
}

void SegmentAllocator::ChargeTally(MemoryClass memory_class) {
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (Header* block = tallied_; block != nullptr; block = block->next) {
    const auto charged = static_cast<int64_t>(block->charged);
    Charge(block->memory_class, -charged);
    tally_bytes_[static_cast<int>(block->memory_class)] -= charged;
    block->memory_class = memory_class;
    bytes += charged;
  }
  tally_bytes_[static_cast<int>(memory_class)] += bytes;
  Charge(memory_class, bytes);
  constexpr int kBuffers = static_cast<int>(MemoryClass::kBuffers);
  RaisePeak(MemoryClass::kBuffers, live_[kBuffers].load(std::memory_order_relaxed) + tally_peak_ - bytes);
  tally_peak_ = bytes;
}

void SegmentAllocator::BeginJob() {
  MutexLock lock(mutex_);
  meter_.Begin(Live(MemoryClass::kBuffers), Live(MemoryClass::kActivations));
}

JobBytes SegmentAllocator::job_bytes() const {
  MutexLock lock(mutex_);
  return meter_.Read(Live(MemoryClass::kBuffers), Live(MemoryClass::kActivations));
}

size_t SegmentAllocator::segment_bytes() const {
  MutexLock lock(mutex_);
  return segment_bytes_;
}

void SegmentAllocator::CheckConsistency() {
  MutexLock lock(mutex_);
  BytesByClass live{};
  size_t free_in_segments = 0, free_in_lists = 0;
  for (const Segment& s : segments_) {
    Header* before = nullptr;
    Header* block = reinterpret_cast<Header*>(s.begin);
    while (block->units != 0) {
      if (block->before != before) Die("wrong neighbour", block);
      if (block->mark == Header::kFree) {
        if (before != nullptr && before->mark == Header::kFree) Die("free neighbours not joined", block);
        ++free_in_segments;
      } else if (block->mark == Header::kUsed) {
        live[static_cast<int>(block->memory_class)] += static_cast<int64_t>(block->charged);
      } else {
        Die("neither free nor used", block);
      }
      before = block;
      block = block->after();
    }
    if (block->payload() != s.begin + s.bytes) Die("blocks do not fill the segment", block);
  }
  for (int i = 0; i < kFirstLevels; ++i) {
    for (int j = 0; j < kSecondLevels; ++j) {
      for (Header* b = free_[i][j]; b != nullptr; b = b->next) {
        if (b->mark != Header::kFree || ClassOf(b->units).first != i || ClassOf(b->units).second != j) {
          Die("in a wrong free list", b);
        }
        ++free_in_lists;
      }
      if ((free_[i][j] != nullptr) != ((second_bits_[i] >> j) & 1))
        Die("wrong bit of a free list", free_[i][j]);
    }
  }
  if (free_in_lists != free_in_segments) Die("a free block is in no list", nullptr);
  if (live != live_bytes()) Die("live bytes do not add up", nullptr);
}

}  // namespace weft
