// Reads a number of bytes as people write it: `1048576`, `64KB`, `1.5GiB`.
#ifndef WEFT_RUN_BYTE_SIZE_H_
#define WEFT_RUN_BYTE_SIZE_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace weft {

// Parses a finite number >= 0 that may end in B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of
// 1024).
std::optional<double> ParseByteSize(absl::string_view text);

}  // namespace weft

#endif  // WEFT_RUN_BYTE_SIZE_H_
