// Counts durations by their length, in buckets whose bounds grow by a factor: what a histogram of the metrics
// shows.
//
// A value; pure. Durations are in nanoseconds; a negative one, of clocks that differ, counts as none.
#ifndef WEFT_COORDINATOR_CORE_DURATION_COUNTS_H_
#define WEFT_COORDINATOR_CORE_DURATION_COUNTS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace weft {

template <int64_t kFirstNs, int kFactor, size_t kBounds>
struct DurationCounts {
  // Returns the upper bounds of all buckets but the last, which has none.
  static constexpr std::array<int64_t, kBounds> Bounds() {
    std::array<int64_t, kBounds> bounds{};
    int64_t bound = kFirstNs;
    for (int64_t& b : bounds) {
      b = bound;
      bound *= kFactor;
    }
    return bounds;
  }

  void Add(int64_t ns) {
    constexpr std::array<int64_t, kBounds> bounds = Bounds();
    ns = std::max<int64_t>(ns, 0);
    ++counts[std::lower_bound(bounds.begin(), bounds.end(), ns) - bounds.begin()];
    sum_ns += ns;
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t count : counts) sum += count;
    return sum;
  }

  std::array<uint64_t, kBounds + 1> counts{};  // by bucket
  int64_t sum_ns = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_DURATION_COUNTS_H_
