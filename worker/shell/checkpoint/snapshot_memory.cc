#include "worker/shell/checkpoint/snapshot_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"

namespace weft {
namespace {

constexpr uintptr_t kPage = 4096;

}  // namespace

struct SnapshotMemory::State {
  using Blocks = std::multimap<size_t, void*>;  // by size

  explicit State(MemorySource& from) : source(from) {}

  MemorySource& source;
  mutable Mutex mutex;
  Blocks kept ABSL_GUARDED_BY(mutex);
  int64_t releases ABSL_GUARDED_BY(mutex) = 0;  // how often
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0, peak_bytes ABSL_GUARDED_BY(mutex) = 0;

  void* TakeKept(size_t size) ABSL_LOCKS_EXCLUDED(mutex);
  absl::StatusOr<void*> Allocate(size_t size) ABSL_LOCKS_EXCLUDED(mutex);
  // Takes back a block that was taken behind so many releases.
  void GiveBack(void* block, size_t size, int64_t behind) ABSL_LOCKS_EXCLUDED(mutex);
  void FreeKept() ABSL_LOCKS_EXCLUDED(mutex);
};

void* SnapshotMemory::State::TakeKept(size_t size) {
  MutexLock lock(mutex);
  const auto found = kept.find(size);
  return found == kept.end() ? nullptr : kept.extract(found).mapped();
}

absl::StatusOr<void*> SnapshotMemory::State::Allocate(size_t size) {
  absl::StatusOr<void*> block = source.Allocate(size);
  if (!block.ok()) {
    FreeKept();
    block = source.Allocate(size);
  }
  if (!block.ok()) return block.status();
  MutexLock lock(mutex);
  bytes += static_cast<int64_t>(size);
  peak_bytes = std::max(peak_bytes, bytes);
  return block;
}

void SnapshotMemory::State::GiveBack(void* block, size_t size, int64_t behind) {
  {
    MutexLock lock(mutex);
    if (behind == releases) {
      kept.emplace(size, block);
      return;
    }
    bytes -= static_cast<int64_t>(size);
  }
  source.Free(block, size);
}

void SnapshotMemory::State::FreeKept() {
  Blocks freed;
  {
    MutexLock lock(mutex);
    freed.swap(kept);
    for (const auto& [size, block] : freed) bytes -= static_cast<int64_t>(size);
  }
  for (const auto& [size, block] : freed) source.Free(block, size);
}

SnapshotMemory::SnapshotMemory(MemorySource& source) : state_(std::make_shared<State>(source)) {}

SnapshotMemory::~SnapshotMemory() { Release(); }

absl::StatusOr<Tensor> SnapshotMemory::Take(size_t bytes) {
  int64_t behind = 0;
  {
    MutexLock lock(state_->mutex);
    behind = state_->releases;
  }
  void* block = state_->TakeKept(bytes);
  if (block == nullptr) {
    const absl::StatusOr<void*> made = state_->Allocate(bytes);
    if (!made.ok()) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "no memory for a copy of %d bytes of the stage's state: %s", bytes, made.status().message()));
    }
    block = *made;
  }
  Tensor tensor;
  tensor.shape.type = DataType::kUInt8;
  tensor.shape.dims = 1;
  tensor.shape.size[0] = static_cast<int64_t>(bytes);
  tensor.bytes = bytes;
  tensor.data = block;
  tensor.owner = std::shared_ptr<void>(
      block, [state = state_, bytes, behind](void* returned) { state->GiveBack(returned, bytes, behind); });
  return tensor;
}

std::function<void()> SnapshotMemory::Reserve(size_t bytes) {
  const absl::StatusOr<Tensor> block = Take(bytes);
  if (!block.ok()) return [] {};  // Take will say so
  const auto begin = reinterpret_cast<uintptr_t>(block->data) / kPage * kPage;
  const size_t length = reinterpret_cast<uintptr_t>(block->data) + bytes - begin;
  return [begin, length] {
#ifdef MADV_POPULATE_WRITE
    madvise(reinterpret_cast<void*>(begin), length, MADV_POPULATE_WRITE);  // a kernel before 5.14 does not
#endif
  };
}

void SnapshotMemory::Release() {
  {
    MutexLock lock(state_->mutex);
    ++state_->releases;
  }
  state_->FreeKept();
  MutexLock lock(state_->mutex);
  state_->peak_bytes = state_->bytes;
}

int64_t SnapshotMemory::bytes() const {
  MutexLock lock(state_->mutex);
  return state_->bytes;
}

int64_t SnapshotMemory::peak_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->peak_bytes;
}

}  // namespace weft
