// Writes what each rank does, operation by operation: one row a rank, in the form of
// torch.distributed.pipelining, e.g. `0UNSHARD,0F0,1UNSHARD,1F0,1B0,..,1REDUCE_GRAD,1STEP`.
//
// A cell is a stage, an operation (sync/protocol.h) and, of a job that has one, a micro-batch. A letter or
// word of that form stands for the operation if it means the same: F forward; B backward, I and W its halves;
// UNSHARD puts weights together from slices; REDUCE_GRAD sums gradients by a joint operation. All other words
// are Weft's own, in capital letters.
//
// Pure.
#ifndef WEFT_SCHEDULES_SIMULATOR_OPERATION_ROWS_H_
#define WEFT_SCHEDULES_SIMULATOR_OPERATION_ROWS_H_

#include <string>
#include <vector>

#include "schedules/graph/graph.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// Returns the rows of the first step among `jobs`, which are in the order of their starts. The graph is of
// the run that was simulated.
std::string OperationRows(const Graph& graph, const std::vector<SimulatedJob>& jobs);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_OPERATION_ROWS_H_
