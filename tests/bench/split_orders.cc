// Measures what the search for orders with split backwards gains over the rule of zero-bubble pipelines, at
// equal memory: pipelines of unequal stages, with the memory of 1f1b and with twice that.
//
//   split_orders [PIPELINES [MOVES]]
//
// MOVES: how many a search tries; without it, as many as by default. The bubble is the part of a period
// in which the rank with most work is idle.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/monotonic_clock.h"
#include "planner/split_order_search.h"
#include "planner/zero_bubble_order.h"
#include "tests/unit/split_pipelines.h"

namespace weft {
namespace {

struct Row {
  int ranks, microbatches;
  double spread;
  int memory;  // times that of 1f1b
};

double BubbleOf(const SplitPipeline& pipeline, int64_t period) {
  return 1 - static_cast<double>(pipeline.MostWork()) / static_cast<double>(period);
}

void Measure(const Row& row, int pipelines, const SplitSearchLimits& limits) {
  double by_rule = 0, by_search = 0, gain = 0, most = 0;
  int proven = 0;
  int64_t nanoseconds = 0;
  for (int i = 0; i < pipelines; ++i) {
    const SplitPipeline pipeline =
        UnequalPipeline(row.ranks, row.microbatches, row.spread, row.memory * row.ranks, i);
    const int64_t rule = LeastPeriodOf(pipeline, ZeroBubbleOrders(pipeline));
    const int64_t begin = MonotonicNow();
    const auto found = FindSplitOrder(pipeline, limits);
    nanoseconds += MonotonicNow() - begin;
    const double longer = static_cast<double>(rule) / static_cast<double>(found->period) - 1;
    by_rule += BubbleOf(pipeline, rule);
    by_search += BubbleOf(pipeline, found->period);
    gain += longer;
    most = std::max(most, longer);
    proven += found->proven ? 1 : 0;
  }
  std::printf("| %d | %d | %.0f %% | %d | %.3f | %.3f | %.2f %% | %.1f %% | %d of %d | %.2f s |\n", row.ranks,
              row.microbatches, 100 * row.spread, row.memory, by_rule / pipelines, by_search / pipelines,
              100 * gain / pipelines, 100 * most, proven, pipelines,
              static_cast<double>(nanoseconds) / 1e9 / pipelines);
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  const int pipelines = std::max(1, argc > 1 ? std::atoi(argv[1]) : 24);
  weft::SplitSearchLimits limits;
  if (argc > 2) limits.moves = std::atoll(argv[2]);
  std::printf(
      "| ranks | micro-batches | spread | memory | bubble, rule | bubble, search | rule longer, mean | most "
      "| "
      "proven | time |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const weft::Row& row : {weft::Row{3, 5, 0.5, 1},
                               {4, 5, 0.5, 1},
                               {4, 8, 0.5, 1},
                               {4, 8, 0.5, 2},
                               {4, 16, 0.3, 1},
                               {8, 16, 0.3, 1},
                               {8, 16, 0.3, 2},
                               {8, 24, 0.1, 1},
                               {8, 24, 0.1, 2},
                               {16, 32, 0.3, 1},
                               {8, 24, 0, 1},
                               {8, 24, 0, 2}}) {
    weft::Measure(row, pipelines, limits);
  }
  return 0;
}
