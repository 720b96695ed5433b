// Defines SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014) as a hash of small numbers: the result depends on a seed and some counters only, and on no
// state. Pure.
#ifndef WEFT_BASE_SPLITMIX64_H_
#define WEFT_BASE_SPLITMIX64_H_

#include <cstdint>

namespace weft {

// Returns number `i`, from 0, of those that SplitMix64 makes from `seed`.
constexpr uint64_t SplitMix64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + 0x9e3779b97f4a7c15 * (i + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace weft

#endif  // WEFT_BASE_SPLITMIX64_H_
