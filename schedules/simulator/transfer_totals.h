// Adds up what the ranks of a whole run send each other, from the tables of its jobs, without running it.
// Every job of a run ends once, so what its outputs take over the links is known ahead. Private to the
// simulator. Pure.
#ifndef WEFT_SCHEDULES_SIMULATOR_TRANSFER_TOTALS_H_
#define WEFT_SCHEDULES_SIMULATOR_TRANSFER_TOTALS_H_

#include "schedules/graph/graph.h"
#include "schedules/simulator/simulate.h"
#include "schedules/simulator/simulated_jobs.h"

namespace weft {

// Whole numbers are added without rounding up to here, in any order.
inline constexpr double kMaxExactInteger = 9007199254740992.0;

// Returns true if the totals are to the last bit what adding tensor after tensor gives, and if they are known
// ahead: the bytes are whole numbers, the graph does not depend on the number of steps, and no joint
// operation moves bytes of its own.
bool TransferTotalsAreExact(const Graph& graph, const SimulatedJobs& jobs, int steps);

// Counts what is sent along the edges between jobs of the run. The initial weights that some jobs fetch come
// from no job, and are not in it.
void CountTransfers(const SimulatedJobs& jobs, int steps, SimulationResult* result);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_TRANSFER_TOTALS_H_
