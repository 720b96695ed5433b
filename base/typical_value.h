// Returns one value for many that scatter. Pure.
#ifndef WEFT_BASE_TYPICAL_VALUE_H_
#define WEFT_BASE_TYPICAL_VALUE_H_

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace weft {

// Returns the median, 0 for no values. If their number is even, it is the higher of the two in the middle.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the mean without the extremes: without one value in twenty at either end, at least one; with fewer
// than three values it leaves none out. Returns 0 for no values. Use it for times that add up: jobs are late
// more often than early, and a step pays for the late ones, so that a sum of medians is too short.
template <typename T>
double TrimmedMeanOf(std::vector<T> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto trimmed = static_cast<std::ptrdiff_t>(values.size() < 3 ? 0 : (values.size() + 19) / 20);
  const double sum = std::accumulate(values.begin() + trimmed, values.end() - trimmed, 0.0);
  return sum / static_cast<double>(static_cast<std::ptrdiff_t>(values.size()) - 2 * trimmed);
}

}  // namespace weft

#endif  // WEFT_BASE_TYPICAL_VALUE_H_
