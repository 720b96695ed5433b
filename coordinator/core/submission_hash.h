// Hashes what a run is submitted with, to tell a repeated request from another one under the same name. Pure.
#ifndef WEFT_COORDINATOR_CORE_SUBMISSION_HASH_H_
#define WEFT_COORDINATOR_CORE_SUBMISSION_HASH_H_

#include <cstdint>
#include <string>

namespace weft {

inline uint64_t BodyHash(const std::string& spec, int32_t processes, const std::string& output) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  const auto add = [&hash](const std::string& s) {
    for (unsigned char c : s) hash = (hash ^ c) * 1099511628211ull;
    hash = (hash ^ s.size()) * 1099511628211ull;
  };
  add(spec);
  add(output);
  add(std::to_string(processes));
  return hash;
}

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_SUBMISSION_HASH_H_
