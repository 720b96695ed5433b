// Draws stages that read any earlier ones from a seed, so that properties of chains are tried on others too.
#ifndef WEFT_TESTS_PROPERTY_RANDOM_INPUTS_H_
#define WEFT_TESTS_PROPERTY_RANDOM_INPUTS_H_

#include <cstdint>
#include <random>
#include <vector>

namespace weft {

// Returns the inputs of each stage, as RunTerms::inputs: every stage but the last is read.
inline std::vector<std::vector<int>> RandomInputs(uint64_t seed, int stages) {
  std::mt19937_64 rng(seed ^ 0xda6);
  std::vector<std::vector<int>> inputs(stages);
  std::vector<bool> read(stages, false);
  for (int stage = 1; stage < stages; ++stage) {
    for (int from = 0; from < stage; ++from) {
      const bool must = stage + 1 == stages && !read[from];
      if (!must && rng() % 3 != 0) continue;
      inputs[stage].push_back(from);
      read[from] = true;
    }
  }
  return inputs;
}

}  // namespace weft

#endif  // WEFT_TESTS_PROPERTY_RANDOM_INPUTS_H_
