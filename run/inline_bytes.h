// Says how large a tensor may be that travels within a message between processes: its reader gets a copy even
// where the two processes share memory.
#ifndef WEFT_RUN_INLINE_BYTES_H_
#define WEFT_RUN_INLINE_BYTES_H_

#include <cstdint>

namespace weft {

inline constexpr int64_t kInlineBytes = 1024;

}  // namespace weft

#endif  // WEFT_RUN_INLINE_BYTES_H_
