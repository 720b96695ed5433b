#include "worker/shell/memory/memory_source.h"

#include <cstdlib>

#include "absl/strings/str_format.h"

namespace weft {

absl::StatusOr<void*> PlainMemory::Allocate(size_t bytes) {
  constexpr size_t kPage = 4096;
  void* p = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (p == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat("no memory for a segment of %d bytes", bytes));
  }
  return p;
}

void PlainMemory::Free(void* segment, size_t /*bytes*/) { std::free(segment); }

}  // namespace weft
