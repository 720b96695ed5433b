// Returns the middle one of values. Pure.
#ifndef WEFT_BASE_MEDIAN_H_
#define WEFT_BASE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weft {

// Returns the median, 0 for no values. If their number is even, it is the higher of the two in the middle.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace weft

#endif  // WEFT_BASE_MEDIAN_H_
