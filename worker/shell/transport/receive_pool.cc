#include "worker/shell/transport/receive_pool.h"

#include <bit>

namespace weft {
namespace {

constexpr size_t kSmallest = 256;
constexpr size_t kSlab = size_t{1} << 20;
constexpr size_t kLargestSmall = kSlab / 4;

// Returns the size of a class. Class c holds blocks of kSmallest * 2^(c/4) * (1 + (c%4)/4): at most a quarter
// of a block is waste.
size_t ClassBytes(size_t size_class) { return (kSmallest << (size_class / 4)) / 4 * (4 + size_class % 4); }

size_t ClassOf(size_t bytes) {
  if (bytes <= kSmallest) return 0;
  const size_t doubling = std::bit_width((bytes - 1) / (2 * kSmallest));
  size_t size_class = doubling * 4;
  while (ClassBytes(size_class) < bytes) ++size_class;
  return size_class;
}

}  // namespace

std::shared_ptr<ReceivePool> ReceivePool::Create(std::shared_ptr<MemorySource> source, size_t idle_limit) {
  return std::shared_ptr<ReceivePool>(new ReceivePool(std::move(source), idle_limit));
}

ReceivePool::ReceivePool(std::shared_ptr<MemorySource> source, size_t idle_limit)
    : source_(std::move(source)), idle_limit_(idle_limit) {}

ReceivePool::~ReceivePool() {
  for (size_t c = 0; c < free_.size(); ++c) {
    if (ClassBytes(c) <= kLargestSmall) continue;
    for (void* block : free_[c]) source_->Free(block, ClassBytes(c));
  }
  for (void* slab : slabs_) source_->Free(slab, kSlab);
}

absl::StatusOr<std::shared_ptr<void>> ReceivePool::Get(size_t bytes) {
  const size_t size_class = ClassOf(bytes);
  absl::StatusOr<void*> block;
  {
    MutexLock lock(mutex_);
    block = Take(size_class);
  }
  if (!block.ok()) return block.status();
  return std::shared_ptr<void>(
      *block, [pool = shared_from_this(), size_class](void* p) { pool->Return(p, size_class); });
}

absl::StatusOr<void*> ReceivePool::Take(size_t size_class) {
  if (size_class >= free_.size()) free_.resize(size_class + 1);
  const size_t bytes = ClassBytes(size_class);
  if (!free_[size_class].empty()) {
    void* block = free_[size_class].back();
    free_[size_class].pop_back();
    if (bytes > kLargestSmall) idle_bytes_ -= bytes;
    return block;
  }
  if (bytes > kLargestSmall) return source_->Allocate(bytes);
  if (slab_remaining_ < bytes) {  // the rest of the old slab is lost: less than a quarter of it
    absl::StatusOr<void*> slab = source_->Allocate(kSlab);
    if (!slab.ok()) return slab;
    slabs_.push_back(*slab);
    slab_next_ = static_cast<char*>(*slab);
    slab_remaining_ = kSlab;
  }
  void* block = slab_next_;
  slab_next_ += bytes;
  slab_remaining_ -= bytes;
  return block;
}

void ReceivePool::Return(void* block, size_t size_class) {
  const size_t bytes = ClassBytes(size_class);
  {
    MutexLock lock(mutex_);
    const bool keep = bytes <= kLargestSmall || idle_bytes_ + bytes <= idle_limit_;
    if (keep) {
      free_[size_class].push_back(block);
      if (bytes > kLargestSmall) idle_bytes_ += bytes;
      return;
    }
  }
  source_->Free(block, bytes);
}

}  // namespace weft
