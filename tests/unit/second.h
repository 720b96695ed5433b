// A second of the clocks that unit tests set by hand.
#ifndef WEFT_TESTS_UNIT_SECOND_H_
#define WEFT_TESTS_UNIT_SECOND_H_

#include <cstdint>

namespace weft {

inline constexpr int64_t kSecond = 1'000'000'000;  // in nanoseconds

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_SECOND_H_
