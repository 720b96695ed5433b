#include "worker/shell/compute/value_hash.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/elementwise.h"

// The hash of a block is a few instructions, and is made in the loop over the blocks.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int64_t kBlockElements = kHashBlockBytes / sizeof(float);
using Block = std::array<float, kBlockElements>;

bool IsHere(const Tensor& tensor) {
  return !tensor.empty() && tensor.place == MemoryPlace::kHost && tensor.ready == nullptr;
}

uint64_t HashZeros(int64_t begin, int64_t end) {
  static constexpr Block kZeros = {};
  uint64_t sum = 0;
  for (int64_t block = begin; block < end; ++block)
    sum += XXH3_64bits_withSeed(kZeros.data(), kHashBlockBytes, static_cast<uint64_t>(block));
  return sum;
}

// Returns the hash of a piece whose type is bfloat16, as float32, block by block; zeros fill the last one.
uint64_t HashWidened(const BFloat16* values, int64_t n, int64_t first) {
  uint64_t sum = 0;
  for (int64_t at = 0; at < n; at += kBlockElements) {
    Block block = {};
    WidenBFloat16(block.data(), values + at, std::min(kBlockElements, n - at));
    sum += HashBytes(block.data(), kHashBlockBytes, static_cast<uint64_t>(first + at / kBlockElements));
  }
  return sum;
}

// Hashes a piece in float32 likewise.
uint64_t HashFloats(const float* values, int64_t n, int64_t first) {
  const int64_t whole = n / kBlockElements * kBlockElements;
  uint64_t sum = HashBytes(values, static_cast<size_t>(whole) * sizeof(float), static_cast<uint64_t>(first));
  if (whole == n) return sum;
  Block block = {};
  std::memcpy(block.data(), values + whole, static_cast<size_t>(n - whole) * sizeof(float));
  return sum +
         HashBytes(block.data(), kHashBlockBytes, static_cast<uint64_t>(first + whole / kBlockElements));
}

}  // namespace

uint64_t HashBytes(const void* data, size_t bytes, uint64_t first) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t sum = 0, block = first;
  for (; bytes >= kHashBlockBytes; bytes -= kHashBlockBytes, at += kHashBlockBytes) {
    // The processor's own prefetching ends at a page. Behind the buffer this does nothing.
    __builtin_prefetch(at + kPageBytes);
    sum += XXH3_64bits_withSeed(at, kHashBlockBytes, block++);
  }
  return bytes == 0 ? sum : sum + XXH3_64bits_withSeed(at, bytes, block);
}

std::optional<uint64_t> HashTensor(const Tensor& tensor) {
  if (!IsHere(tensor)) return std::nullopt;
  return HashBytes(tensor.data, tensor.bytes);
}

std::optional<uint64_t> HashSlice(const Tensor& slice, int64_t elements, int part, int parts) {
  if (!IsHere(slice)) return std::nullopt;
  const int64_t begin = SliceOf(elements, part, parts).begin;
  return HashBytes(slice.data, slice.bytes, static_cast<uint64_t>(begin / kBlockElements));
}

uint64_t HashPieces(const std::vector<FlatPiece>& pieces, int64_t elements) {
  uint64_t sum = 0;
  int64_t hashed = 0;  // blocks
  for (const FlatPiece& piece : pieces) {
    const int64_t first = piece.offset / kBlockElements;
    sum += HashZeros(hashed, first);
    sum += piece.type == DataType::kBFloat16
               ? HashWidened(static_cast<const BFloat16*>(piece.data), piece.n, first)
               : HashFloats(static_cast<const float*>(piece.data), piece.n, first);
    hashed = first + (piece.n + kBlockElements - 1) / kBlockElements;
  }
  return sum + HashZeros(hashed, elements / kBlockElements);
}

}  // namespace weft
