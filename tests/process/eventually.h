// Waits until what other processes or threads do has come about.
#ifndef WEFT_TESTS_PROCESS_EVENTUALLY_H_
#define WEFT_TESTS_PROCESS_EVENTUALLY_H_

#include <unistd.h>

#include <chrono>
#include <functional>

namespace weft {

// Asks until it is so, for so many seconds at most. Returns false if it never was.
inline bool Eventually(const std::function<bool()>& done, int seconds = 60) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    usleep(20'000);
  }
  return true;
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_EVENTUALLY_H_
