#include "tests/testgpu/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_format.h"

namespace weft::testgpu {
namespace {

constexpr size_t kRegionBytes = size_t{16} << 30;  // of addresses; memory is taken when it is written
constexpr int kPoison = 0xFF;
constexpr size_t kCharged = 64;

char* Reserve(int access) {
  void* const region =
      mmap(nullptr, kRegionBytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    std::perror("testgpu: reserving addresses for the device's memory");
    std::abort();
  }
  return static_cast<char*>(region);
}

}  // namespace

DeviceMemory& DeviceMemory::Instance() {
  static DeviceMemory* const memory = new DeviceMemory;
  return *memory;
}

DeviceMemory::DeviceMemory() : begin_(Reserve(PROT_NONE)) {
  mirror_ =
      reinterpret_cast<uintptr_t>(Reserve(PROT_READ | PROT_WRITE)) - reinterpret_cast<uintptr_t>(begin_);
}

void DeviceMemory::Restrict(int64_t most_bytes, int64_t failing_allocation) {
  std::lock_guard lock(mutex_);
  most_ = most_bytes;
  failing_ = failing_allocation == 0 ? 0 : allocations_ + failing_allocation;
}

// Eight sizes from each power of two to the next, so that few sizes serve all and little is lost.
size_t DeviceMemory::SizeOf(size_t bytes) {
  const size_t granules = std::max<size_t>(1, (bytes + kGranule - 1) / kGranule);
  const size_t step = std::max<size_t>(1, absl::bit_floor(granules) / 8);
  return (granules + step - 1) / step * step * kGranule;
}

char* DeviceMemory::TakeFree(size_t size, const Request& request) {
  const auto found = free_.find(size);
  if (found == free_.end()) return nullptr;
  std::vector<FreeBlock>& blocks = found->second;
  // The latest first: who still uses it notices soonest.
  for (size_t i = blocks.size(); i-- > 0;) {
    const FreeBlock& block = blocks[i];
    const bool own = block.owner == request.owner && block.stream == request.stream;
    const bool passed =
        (own || block.own.IsPassed()) && std::all_of(block.others.begin(), block.others.end(),
                                                     [](const Point& point) { return point.IsPassed(); });
    if (!passed) continue;
    char* const begin = block.begin;
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    return begin;
  }
  return nullptr;
}

absl::StatusOr<void*> DeviceMemory::Allocate(const Request& request) {
  const size_t size = SizeOf(request.bytes);
  const auto c = static_cast<size_t>(request.memory_class);
  std::lock_guard lock(mutex_);
  const auto charged =
      static_cast<int64_t>((std::max<size_t>(1, request.bytes) + kCharged - 1) / kCharged * kCharged);
  const bool fails = ++allocations_ == failing_;
  if (fails || (most_ > 0 && live_ + charged > most_)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the device has no memory for %d bytes of class %s: %d bytes are in use, of which %d are the rank's "
        "of "
        "that class",
        request.bytes, MemoryClassName(request.memory_class), live_, request.owner->live_[c]));
  }
  char* begin = TakeFree(size, request);
  if (begin == nullptr) {
    if (size > kRegionBytes - used_)
      return absl::ResourceExhaustedError("the device's addresses are used up");
    begin = begin_ + used_;
    used_ += size;
    std::memset(Mirror(begin), kPoison, size);
  }
  MemoryOwner& owner = *request.owner;
  const uint32_t tally = request.tallied == Tallied::kYes ? owner.tally_ : 0;
  Live& live = blocks_[begin];
  live = {size, charged, request.memory_class, tally, {}};
  live.block.begin = begin;
  live.block.owner = request.owner;
  live.block.stream = request.stream;
  live.block.writer = request.writer;
  live_ += charged;
  owner.live_[c] += charged;
  owner.peak_[c] = std::max(owner.peak_[c], owner.live_[c]);
  owner.most_bytes_ =
      std::max(owner.most_bytes_, std::accumulate(owner.live_.begin(), owner.live_.end(), int64_t{0}));
  if (tally != 0) owner.tallied_[c] += charged;
  return begin;
}

void DeviceMemory::Free(void* block) {
  if (block != nullptr) Instance().Release(static_cast<char*>(block));
}

void DeviceMemory::Release(char* begin) {
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(begin);
  if (found == blocks_.end()) {
    std::fprintf(stderr, "testgpu: %p is freed, which is no live block of the device\n",
                 static_cast<void*>(begin));
    std::abort();
  }
  const Live& live = found->second;
  std::memset(Mirror(begin), kPoison, live.bytes);
  MemoryOwner& owner = *live.block.owner;
  const int64_t bytes = live.charged;
  const auto c = static_cast<size_t>(live.memory_class);
  live_ -= bytes;
  owner.live_[c] -= bytes;
  if (live.tally != 0 && live.tally == owner.tally_) owner.tallied_[c] -= bytes;
  FreeBlock free{begin, live.block.owner, live.block.stream, Now(owner), {}};
  for (const std::shared_ptr<MemoryOwner>& user : live.block.users) free.others.push_back(Now(*user));
  free_[live.bytes].push_back(std::move(free));
  blocks_.erase(found);
}

DeviceMemory::Point DeviceMemory::Now(const MemoryOwner& owner) {
  if (owner.progress_ == nullptr) return {};
  return {owner.progress_, owner.progress_->enqueued};
}

bool DeviceMemory::Block::IsUsedBy(const std::shared_ptr<MemoryOwner>& rank) const {
  return owner == rank || owner->rank() < 0 || std::find(users.begin(), users.end(), rank) != users.end();
}

DeviceMemory::Live* DeviceMemory::FindLocked(const void* data) {
  auto after = blocks_.upper_bound(static_cast<const char*>(data));
  if (after == blocks_.begin()) return nullptr;
  auto& [begin, live] = *std::prev(after);
  return static_cast<const char*>(data) < begin + live.bytes ? &live : nullptr;
}

absl::StatusOr<DeviceMemory::Block> DeviceMemory::Find(const void* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  const Live* const live = FindLocked(data);
  if (live == nullptr || static_cast<const char*>(data) + bytes > live->block.begin + live->bytes) {
    return absl::OutOfRangeError(
        absl::StrFormat("%d bytes at %p are not in live memory of the device", bytes, data));
  }
  return live->block;
}

void DeviceMemory::SetArriving(const void* data, std::shared_ptr<DeviceEvent> event, bool in_order) {
  std::lock_guard lock(mutex_);
  Live* const live = FindLocked(data);
  if (live == nullptr) return;
  live->block.arriving = std::move(event);
  live->block.in_order = in_order;
}

void DeviceMemory::SetWriter(const void* data, std::shared_ptr<DeviceEvent> event) {
  std::lock_guard lock(mutex_);
  if (Live* const live = FindLocked(data); live != nullptr) live->block.writer = std::move(event);
}

void DeviceMemory::AddUser(const void* data, const std::shared_ptr<MemoryOwner>& rank) {
  std::lock_guard lock(mutex_);
  Live* const live = FindLocked(data);
  if (live != nullptr && !live->block.IsUsedBy(rank)) live->block.users.push_back(rank);
}

bool DeviceMemory::Contains(const void* address) const {
  const auto* const at = static_cast<const char*>(address);
  return at >= begin_ && at < begin_ + kRegionBytes;
}

BytesByClass DeviceMemory::live(const MemoryOwner& owner) {
  std::lock_guard lock(mutex_);
  return owner.live_;
}

BytesByClass DeviceMemory::peak(const MemoryOwner& owner) {
  std::lock_guard lock(mutex_);
  return owner.peak_;
}

int64_t DeviceMemory::most_bytes(const MemoryOwner& owner) {
  std::lock_guard lock(mutex_);
  return owner.most_bytes_;
}

void DeviceMemory::BeginTally(MemoryOwner& owner) {
  std::lock_guard lock(mutex_);
  ++owner.tally_;
  owner.tallied_ = {};
}

int64_t DeviceMemory::tally(const MemoryOwner& owner, MemoryClass memory_class) {
  std::lock_guard lock(mutex_);
  return owner.tallied_[static_cast<size_t>(memory_class)];
}

}  // namespace weft::testgpu
