// Counts the gradients and sums that a rank has beside the sum that it makes.
//
// If one rank alone computes the backwards of a stage and sums their gradients, it sums them in the order
// of micro-batches. A gradient that comes before those of earlier micro-batches waits. A fixed order says how
// many wait at a time. Under the greedy rule none does if backwards become ready in the order of their
// micro-batches and go in it; else all but the first may wait, in each step under way.
//
// Where backwards also go in the order of steps, such a rank has one sum at a time: the update that takes the
// sum is granted before the next step's jobs, waits for nothing but these backwards and the update before it,
// and goes before any other job. Pure.
#ifndef WEFT_RUN_EARLY_GRADIENTS_H_
#define WEFT_RUN_EARLY_GRADIENTS_H_

#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

// Returns, by stage, the most gradients that wait at a time on the rank that sums them.
std::vector<int> CountEarlyGradients(const Graph& graph);

// Returns, by stage, whether the rank that alone computes its backwards has one sum of it at a time; false
// where several ranks do.
std::vector<bool> FindSingleSums(const Graph& graph);

}  // namespace weft

#endif  // WEFT_RUN_EARLY_GRADIENTS_H_
