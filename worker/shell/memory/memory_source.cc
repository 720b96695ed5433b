#include "worker/shell/memory/memory_source.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_format.h"

namespace weft {

void* AllocatePages(size_t alignment, size_t bytes) {
  constexpr size_t kLargePage = 2 << 20;
  const bool is_large = bytes >= 4 * kLargePage;
  if (is_large) alignment = std::max(alignment, kLargePage);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const pages = std::aligned_alloc(alignment, rounded);
  if (is_large && pages != nullptr) madvise(pages, rounded, MADV_HUGEPAGE);  // only advice
  return pages;
}

absl::StatusOr<void*> PlainMemory::Allocate(size_t bytes) {
  constexpr size_t kPage = 4096;
  void* p = AllocatePages(kPage, bytes);
  if (p == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat("no memory for a segment of %d bytes", bytes));
  }
  return p;
}

void PlainMemory::Free(void* segment, size_t /*bytes*/) { std::free(segment); }

}  // namespace weft
