// Hashes the bytes of tensors, so that runs whose bits should be equal can be compared job by job.
//
// A hash is the sum, modulo 2^64, of the hashes (XXH3, 64 bits) of the blocks of 64 bytes, each with its
// number in the whole as the seed. So the hash of a slice (SliceOf, which cuts between blocks) is a summand
// of that of the whole, whichever rank holds it; one bit that differs changes the sum. It finds faults, and
// is no protection against forgery. Reads at about the speed of memory. Pure; any thread. Host memory only.
#ifndef WEFT_WORKER_SHELL_COMPUTE_VALUE_HASH_H_
#define WEFT_WORKER_SHELL_COMPUTE_VALUE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/shell/compute/flat_math.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

inline constexpr size_t kHashBlockBytes = 64;

// Returns the hash of bytes that begin with block `first` of a whole. Requires that they end where that does,
// or with a block.
uint64_t HashBytes(const void* data, size_t bytes, uint64_t first = 0);

// Returns the hash of a tensor, or of part `part` of `parts` of a flat buffer of `elements` float32
// (SliceOf), as a summand of the whole's. Returns nothing for an empty tensor, and for one that is not in
// host memory or may not be there yet.
std::optional<uint64_t> HashTensor(const Tensor& tensor);
std::optional<uint64_t> HashSlice(const Tensor& slice, int64_t elements, int part, int parts);

// Returns the hash of the flat float32 buffer of `elements` elements that FlatMath::WritePieces would make of
// the pieces. Requires that each begins with a block there, and lies in host memory.
uint64_t HashPieces(const std::vector<FlatPiece>& pieces, int64_t elements);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_VALUE_HASH_H_
