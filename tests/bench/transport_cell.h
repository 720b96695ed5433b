// Measures one cell of transport_bench that is this transport: the cell, its two sides in two processes, and
// their start.
#ifndef WEFT_TESTS_BENCH_TRANSPORT_CELL_H_
#define WEFT_TESTS_BENCH_TRANSPORT_CELL_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/monotonic_clock.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

inline constexpr uint64_t kRun = 1;
// The variable that names the folder of certificates of the cells over TLS.
inline constexpr char kCertificates[] = "WEFT_BENCH_CERTIFICATES";
inline constexpr PeerId kOther = 1;
inline constexpr Nanos kForever = 600'000'000'000;

[[noreturn]] void Die(const std::string& what);
void Pin(int core);

struct Cell {
  // The measured system: "in_place", "copied", "tcp", "perftest_shm", "perftest_tcp"; of a device "cuda",
  // "cuda_staged", "perftest_cuda", and "host", "host_staged".
  std::string system;
  std::string test;  // "latency", "bandwidth"
  size_t bytes = 0;
  int64_t iterations = 0;
};

// Returns the messages before the clock of a bandwidth cell starts: every buffer of the window has been
// written twice by then.
int64_t WarmUp(const Cell& cell);
UcxOptions OptionsOf(const std::string& system);
TensorKey Key(int64_t number, int from);
Tensor MakeTensor(MemorySource& memory, size_t bytes);

// A program with pipes to and from it.
struct Child {
  pid_t pid = -1;
  FILE* to = nullptr;
  FILE* from = nullptr;
};
Child Spawn(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment,
            int core);
std::string ReadLine(FILE* file);
int Finish(Child* child);

// Returns the seconds for `cell.iterations` (round trips for latency).
double MeasureOurs(const Cell& cell);
// Runs the other side of the cell.
int RunChild(const Cell& cell);

}  // namespace weft

#endif  // WEFT_TESTS_BENCH_TRANSPORT_CELL_H_
