// Searches the orders of a pipeline with split backwards for one of a short period.
//
// The search begins with the best order of the zero-bubble rule (zero_bubble_order.h) and is never worse. It
// moves a job of a rank forwards or backwards in its word and takes the change by simulated annealing
// (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983): always if the period becomes shorter, and less and
// less often if it becomes longer. It is over when the period is the work of a rank, which proves it to be
// the least. At last each backward_weight moves as far forwards as the period allows: its bytes are free
// early, and in the cache.
//
// The choices are drawn from a generator of its own, so one problem has one answer, unless the search is
// stopped. Pure.
#ifndef WEFT_PLANNER_SPLIT_ORDER_SEARCH_H_
#define WEFT_PLANNER_SPLIT_ORDER_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/split_order.h"

namespace weft {

struct SplitSearchLimits {
  int64_t moves = 100'000;                            // that are tried
  std::function<bool()> stop = [] { return false; };  // asked from time to time
};

struct SplitSearchResult {
  SplitOrder order;
  int64_t period = 0;
  bool proven = false;  // no order has a shorter period
};

// Returns nothing if some rank has no room for a micro-batch.
std::optional<SplitSearchResult> FindSplitOrder(const SplitPipeline& pipeline,
                                                const SplitSearchLimits& limits = {});

}  // namespace weft

#endif  // WEFT_PLANNER_SPLIT_ORDER_SEARCH_H_
