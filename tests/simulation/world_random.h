// Draws the chances of a simulated world: the same numbers from a seed everywhere.
#ifndef WEFT_TESTS_SIMULATION_WORLD_RANDOM_H_
#define WEFT_TESTS_SIMULATION_WORLD_RANDOM_H_

#include <cstdint>

namespace weft {

// Generates SplitMix64's numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return n <= 0 ? 0 : static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int From(int low, int high) { return low + static_cast<int>(Below(high - low + 1)); }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }

 private:
  uint64_t state_;
};

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_WORLD_RANDOM_H_
