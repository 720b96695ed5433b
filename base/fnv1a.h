// Hashes bytes with FNV-1a, 64 bits (Fowler, Noll and Vo): equal on every machine, and any one byte that
// changes changes the result. It does not withstand adversaries. Pure.
#ifndef WEFT_BASE_FNV1A_H_
#define WEFT_BASE_FNV1A_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft {

class Fnv1a {
 public:
  Fnv1a& Add(absl::string_view bytes) {
    for (const char byte : bytes) AddByte(static_cast<uint8_t>(byte));
    return *this;
  }
  // Adds eight bytes, the lowest first.
  Fnv1a& Add(uint64_t number) {
    for (int i = 0; i < 8; ++i, number >>= 8) AddByte(static_cast<uint8_t>(number));
    return *this;
  }
  uint64_t hash() const { return hash_; }

 private:
  void AddByte(uint8_t byte) { hash_ = (hash_ ^ byte) * 1099511628211ull; }

  uint64_t hash_ = 14695981039346656037ull;
};

}  // namespace weft

#endif  // WEFT_BASE_FNV1A_H_
