// Times the search for patterns: for chains of P ranks with c stages each, the least largest memory at a
// period 5 % above the bound. Prints operations, memory and whether it is proven.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "planner/smallest_peak.h"
#include "tests/bench/random_chain.h"

namespace weft {
namespace {

constexpr int64_t kMostNanoseconds = 10'000'000'000;  // of one minimization

void BM_LeastMemory(benchmark::State& state) {
  const PlacedChain random =
      RandomChain(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), state.range(2) != 0);
  const ChainPattern placed = PlaceChain(random.chain, random.placement, 1);
  const int64_t period = LoadBound(placed.problem) * 105 / 100;
  SmallestPeak least;
  for (auto _ : state) {
    const int64_t end = MonotonicNow() + kMostNanoseconds;
    SearchLimits limits;
    limits.stop = [end] { return MonotonicNow() > end; };
    least = FindSmallestPeak(placed.problem, period, limits);
  }
  state.SetLabel(absl::StrCat(placed.problem.tasks.size(), " operations, memory ", least.bytes,
                              least.proven() ? ", proven" : absl::StrCat(", not below ", least.lower_bound)));
}
BENCHMARK(BM_LeastMemory)
    ->ArgNames({"ranks", "stages", "folded"})
    ->Args({4, 2, 1})
    ->Args({4, 3, 1})
    ->Args({4, 3, 0})
    ->Args({8, 2, 1})
    ->Args({8, 2, 0})
    ->Args({4, 4, 0})
    ->Args({8, 3, 0})
    ->Args({16, 2, 1})
    ->Args({8, 4, 1})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
