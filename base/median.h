// Returns the middle one of values. Pure.
#ifndef WEFT_BASE_MEDIAN_H_
#define WEFT_BASE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weft {

// Of an even number it is the higher of the two in the middle. 0 for none.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace weft

#endif  // WEFT_BASE_MEDIAN_H_
