// Compresses texts and sums up bytes, by libdeflate. Pure. What a text is deflated to depends on the version
// of libdeflate; what that inflates to does not.
#ifndef WEFT_BASE_DEFLATE_H_
#define WEFT_BASE_DEFLATE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Adds bytes to a CRC32, which begins at 0.
uint32_t AddToCrc32(uint32_t crc, const void* data, size_t bytes);

// Returns the text in the form of zlib (RFC 1950).
std::string Deflate(absl::string_view text);

// Returns the text that was deflated. InvalidArgument if `deflated` is damaged, or the text has more than
// `most` bytes. Takes at most twice the text's memory, or four times that of `deflated`, and never more than
// `most` bytes.
absl::StatusOr<std::string> Inflate(absl::string_view deflated, size_t most);

}  // namespace weft

#endif  // WEFT_BASE_DEFLATE_H_
