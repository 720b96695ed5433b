// Ends the process on a broken invariant, in release builds too: an error of Weft itself, which no caller can
// handle. Errors that the outside can cause are absl::Status instead. Pure, but for the end of the process.
#ifndef WEFT_BASE_REQUIRE_H_
#define WEFT_BASE_REQUIRE_H_

#include <cstdio>
#include <cstdlib>

namespace weft {

// Prints the invariant and its place in the code to stderr, and aborts.
[[noreturn]] inline void BrokenInvariant(const char* invariant, const char* file = __builtin_FILE(),
                                         int line = __builtin_LINE()) {
  std::fprintf(stderr, "weft: broken invariant at %s:%d: %s\n", file, line, invariant);
  std::abort();
}

// Calls BrokenInvariant unless the condition holds. `invariant` says what should be true.
inline void Require(bool condition, const char* invariant, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (!condition) [[unlikely]] {
    BrokenInvariant(invariant, file, line);
  }
}

}  // namespace weft

#endif  // WEFT_BASE_REQUIRE_H_
