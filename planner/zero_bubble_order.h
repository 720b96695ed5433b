// Makes the order of a pipeline with split backwards by the rule of zero-bubble pipelines (Qi, Wan, Huang and
// Lin, arXiv 2401.10241, section 3.1): micro-batch after micro-batch, a forward where it does not keep a
// backward waiting, and backward_weights where a rank would idle, or needs their room.
//
// The rule leaves three choices open; each of the eight forms is made. It looks neither back nor ahead, so on
// stages of unequal times a search finds better ones (split_order_search.h). Pure.
#ifndef WEFT_PLANNER_ZERO_BUBBLE_ORDER_H_
#define WEFT_PLANNER_ZERO_BUBBLE_ORDER_H_

#include <vector>

#include "planner/split_order.h"

namespace weft {

// Returns the orders of the eight forms, without those for which a rank has no room.
std::vector<SplitOrder> ZeroBubbleOrders(const SplitPipeline& pipeline);

}  // namespace weft

#endif  // WEFT_PLANNER_ZERO_BUBBLE_ORDER_H_
