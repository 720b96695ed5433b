// Predicts the most bytes of each rank and class of memory, from the jobs of a run in time: simulated ones,
// or those that really ran.
//
// A class has a range. `most` is what no timing exceeds in this order of jobs. `least` is reached for
// certain. The two differ by what depends on how fast another process gives tensors back, and by what
// LibTorch takes while a job runs: the whole class of buffers. Where they are equal the prediction is exact.
// Copies of tensors from other ranks depend on which ranks share memory, which a prediction before the run
// does not know. Pure.
#ifndef WEFT_RUN_RUN_PEAKS_H_
#define WEFT_RUN_RUN_PEAKS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "run/run_spec.h"
#include "schedules/run_terms.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// Bytes of the classes that a worker's allocator counts for a rank (MemoryClass of the worker's compute.h).
struct ClassBytes {
  int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0, received = 0;
};
struct PeakBytes {
  ClassBytes least, most;
};

// Says which ranks share memory: those with the same number.
using MemoryOfRank = std::vector<int>;

// Returns the peaks by rank. `jobs` may be of some of the run's steps; each of their jobs comes once. Without
// `memory_of_rank`, any two ranks of a run with separate memory may share none, and those of others do.
std::vector<PeakBytes> CountPeaks(const RunSpec& run, const RunSchedule& schedule,
                                  std::vector<SimulatedJob> jobs,
                                  const std::optional<MemoryOfRank>& memory_of_rank = std::nullopt);

}  // namespace weft

#endif  // WEFT_RUN_RUN_PEAKS_H_
