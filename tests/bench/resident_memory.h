// Reads how much memory this process has in use now, for benchmarks that must not grow.
#ifndef WEFT_TESTS_BENCH_RESIDENT_MEMORY_H_
#define WEFT_TESTS_BENCH_RESIDENT_MEMORY_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace weft {

inline double ResidentMiB() {
  long pages = 0, resident = 0;
  FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr || std::fscanf(f, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(f);
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

}  // namespace weft

#endif  // WEFT_TESTS_BENCH_RESIDENT_MEMORY_H_
