// How long the search for patterns takes: for chains of P ranks with c stages each, the least largest memory
// at a period 5 % above the bound. Prints operations, memory and whether it is proven.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "planner/chain.h"
#include "planner/pattern_check.h"
#include "planner/shift_search.h"

namespace weft {
namespace {

constexpr int64_t kMostNanoseconds = 10'000'000'000;  // of one minimization

// Layers of 5 to 15 ticks forward, twice that backward, with transfers of 1 to 4 ticks.
ChainPattern RandomChain(int ranks, int stages_of_rank, bool folded) {
  uint64_t state = 90;
  const auto draw = [&](int from, int to) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state >> 33) % (to - from + 1));
  };
  PlannedChain chain;
  chain.ranks = ranks;
  Placement placement;
  for (int l = 0; l < ranks * stages_of_rank; ++l) {
    const int forward = draw(5, 15);
    ChainLayer layer;
    layer.forward = forward;
    layer.backward = 2 * forward;
    layer.kept = draw(1, 9);
    layer.transfer = draw(1, 4);
    chain.layers.push_back(layer);
    const int place = l % ranks;
    const bool back = l / ranks % 2 == 1;
    placement.push_back(!folded ? draw(0, ranks - 1) : back ? ranks - 1 - place : place);
  }
  return PlaceChain(chain, placement, 1);
}

void BM_LeastMemory(benchmark::State& state) {
  ChainPattern placed =
      RandomChain(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), state.range(2) != 0);
  const int64_t period = LoadBound(placed.problem) * 105 / 100;
  int64_t least = 0;
  Verdict verdict = Verdict::kUnknown;
  for (auto _ : state) {
    const int64_t end = MonotonicNow() + kMostNanoseconds;
    std::fill(placed.problem.memory.begin(), placed.problem.memory.end(), kUnlimitedBytes);
    SearchLimits limits;
    limits.stop = [end] { return MonotonicNow() > end; };
    for (verdict = Verdict::kFound; verdict == Verdict::kFound;) {
      const ShiftSearchResult result = FindPattern(placed.problem, period, limits);
      verdict = result.verdict;
      if (verdict != Verdict::kFound) break;
      const std::vector<int64_t> peaks = PeakBytes(placed.problem, result.pattern);
      least = *std::max_element(peaks.begin(), peaks.end());
      std::fill(placed.problem.memory.begin(), placed.problem.memory.end(), least - 1);
    }
  }
  state.SetLabel(absl::StrCat(placed.problem.tasks.size(), " operations, memory ", least,
                              verdict == Verdict::kImpossible ? ", proven" : ", not proven"));
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
