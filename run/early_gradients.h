// Counts the gradients that come before their turn.
//
// If one rank alone computes the backwards of a stage and sums their gradients, it sums them in the order
// of micro-batches. A gradient that comes before those of earlier micro-batches waits. A fixed order says how
// many wait at a time. Under the greedy rule none does if backwards become ready in the order of their
// micro-batches and go in it; else all but the first may wait, in each step under way. Pure.
#ifndef WEFT_RUN_EARLY_GRADIENTS_H_
#define WEFT_RUN_EARLY_GRADIENTS_H_

#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

// Returns, by stage, the most gradients that wait at a time on the rank that sums them.
std::vector<int> CountEarlyGradients(const Graph& graph);

}  // namespace weft

#endif  // WEFT_RUN_EARLY_GRADIENTS_H_
