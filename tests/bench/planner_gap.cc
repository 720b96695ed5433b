// Measures how far the search for placements stays from the best where it may not list them all: random
// chains that the exact search solves, solved once more from the contiguous cut, the packed layers and
// exchanges.
//
//   planner_gap [CHAINS]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/monotonic_clock.h"
#include "planner/pattern_check.h"
#include "planner/placement_search.h"
#include "tests/bench/random_chain.h"

namespace weft {
namespace {

constexpr double kSeconds = 0.5;  // of one search

PlacementSearchOptions Limited(int batches, bool contiguous) {
  PlacementSearchOptions options;
  options.batches = batches;
  options.contiguous = contiguous;
  const int64_t end = MonotonicNow() + static_cast<int64_t>(kSeconds * 1e9);
  options.limits.stop = [end] { return MonotonicNow() > end; };
  return options;
}

struct Gaps {
  int solved = 0, optimal = 0, none = 0;
  double sum = 0, worst = 0;
  int64_t nanoseconds = 0;
};

// Returns the chain with a memory between what one micro-batch needs and what no limit would take.
PlannedChain RandomProblem(uint64_t seed) {
  Draw draw(seed);
  const int ranks = draw(2, 4);
  PlannedChain chain = RandomChain(ranks, draw(2, 3), false, seed + 1000).chain;
  for (ChainLayer& layer : chain.layers) layer.resident = draw(0, 12);
  const int64_t least = LeastMemoryThatFits(chain, {});
  chain.memory = least + least * draw(0, 6) / 10;
  return chain;
}

void Measure(uint64_t seed, int batches, Gaps* gaps, Gaps* cuts) {
  const PlannedChain chain = RandomProblem(seed);
  const PlacementSearchResult exact = FindPlacement(chain, Limited(batches, false));
  if (!exact.proven()) return;
  for (Gaps* of : {gaps, cuts}) {
    PlacementSearchOptions options = Limited(batches, of == cuts);
    if (of == gaps) options.listed = 0;
    const int64_t begin = MonotonicNow();
    const PlacementSearchResult found = FindPlacement(chain, options);
    of->nanoseconds += MonotonicNow() - begin;
    ++of->solved;
    if (!found.best.has_value()) {
      ++of->none;
      continue;
    }
    const double gap =
        static_cast<double>(found.best->pattern.period) / static_cast<double>(exact.best->pattern.period) - 1;
    of->optimal += gap == 0;
    of->sum += gap;
    of->worst = std::max(of->worst, gap);
  }
}

void Print(const char* name, const Gaps& gaps) {
  const int found = std::max(1, gaps.solved - gaps.none);
  std::printf("| %s | %d | %d | %d | %.2f %% | %.1f %% | %.1f ms |\n", name, gaps.solved, gaps.optimal,
              gaps.none, 100 * gaps.sum / found, 100 * gaps.worst,
              static_cast<double>(gaps.nanoseconds) / 1e6 / std::max(1, gaps.solved));
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  const int chains = argc > 1 ? std::atoi(argv[1]) : 200;
  std::printf(
      "| search | solved exactly | optimal | nothing found | mean gap | worst | time |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int batches : {1, 2}) {
    weft::Gaps gaps, cuts;
    for (int i = 0; i < chains; ++i) weft::Measure(i, batches, &gaps, &cuts);
    weft::Print(batches == 1 ? "exchanges, k = 1" : "exchanges, k = 2", gaps);
    weft::Print(batches == 1 ? "contiguous, exact, k = 1" : "contiguous, exact, k = 2", cuts);
  }
  return 0;
}
