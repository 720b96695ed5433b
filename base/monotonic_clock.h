// Reads the clock of deadlines, traces and tensors' ages.
#ifndef WEFT_BASE_MONOTONIC_CLOCK_H_
#define WEFT_BASE_MONOTONIC_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace weft {

// Returns nanoseconds of the monotonic clock, which the processes of one machine share.
inline int64_t MonotonicNow() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Returns what is to be added to the monotonic clock's time for that of the wall clock, nanoseconds since
// 1970.
inline int64_t UnixMinusMonotonic() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec - MonotonicNow();
}

// Returns the same as MonotonicNow in seconds, for deadlines and progress that people see.
inline double MonotonicSeconds() { return 1e-9 * static_cast<double>(MonotonicNow()); }

}  // namespace weft

#endif  // WEFT_BASE_MONOTONIC_CLOCK_H_
