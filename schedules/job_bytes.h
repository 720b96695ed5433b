// Says how many bytes a job takes of the memory of its rank while it runs. Pure.
#ifndef WEFT_SCHEDULES_JOB_BYTES_H_
#define WEFT_SCHEDULES_JOB_BYTES_H_

#include <algorithm>
#include <compare>
#include <cstdint>

namespace weft {

// Bytes of activations and buffers.
struct JobBytes {
  int64_t before = 0;   // bytes of both that are alive when the job begins
  int64_t buffers = 0;  // the most of buffers at a time, beyond those when it begins
  int64_t most = 0;     // likewise of both
  // Bytes of buffers, and of both, when it ends, beyond those when it begins; negative if it frees more.
  int64_t left_buffers = 0, left = 0;
  int64_t passing = 0;  // the most of both at a time, beyond those when it ends
  friend auto operator<=>(const JobBytes&, const JobBytes&) = default;
};

// Returns the larger of each figure.
inline JobBytes MostOf(const JobBytes& a, const JobBytes& b) {
  return {std::max(a.before, b.before), std::max(a.buffers, b.buffers),
          std::max(a.most, b.most),     std::max(a.left_buffers, b.left_buffers),
          std::max(a.left, b.left),     std::max(a.passing, b.passing)};
}

}  // namespace weft

#endif  // WEFT_SCHEDULES_JOB_BYTES_H_
