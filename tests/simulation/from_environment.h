// Reads a number from the environment: WEFT_SEED and the like of the simulations' tests.
#ifndef WEFT_TESTS_SIMULATION_FROM_ENVIRONMENT_H_
#define WEFT_TESTS_SIMULATION_FROM_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>

namespace weft {

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_FROM_ENVIRONMENT_H_
