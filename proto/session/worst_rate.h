// Bounds how long bytes may be on their way: coordinator and workers judge transfers by the same rate. Pure.
#ifndef WEFT_PROTO_SESSION_WORST_RATE_H_
#define WEFT_PROTO_SESSION_WORST_RATE_H_

#include <cstdint>

namespace weft {

// Least bytes a second of a link under load.
inline constexpr int64_t kWorstRate = 1 << 20;

// Returns the time of so many bytes at the worst rate, in nanoseconds.
inline int64_t TransferTime(uint64_t bytes) {
  return static_cast<int64_t>(1e9 * static_cast<double>(bytes) / static_cast<double>(kWorstRate));
}

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_WORST_RATE_H_
