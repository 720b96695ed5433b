// Makes the result of a simulation at its begin, and derives its figures at its end. Private to the
// simulator.
#ifndef WEFT_SCHEDULES_SIMULATOR_SIMULATION_SUMMARY_H_
#define WEFT_SCHEDULES_SIMULATOR_SIMULATION_SUMMARY_H_

#include <vector>

#include "schedules/simulator/simulate.h"

namespace weft {

// Returns the result of a run that has not begun. `held_bytes`: by rank, beside activations; empty for none.
SimulationResult EmptyResult(const Graph& graph, const SimulationOptions& options,
                             const std::vector<double>& held_bytes);

// Derives what the result says of the whole run from its ranks and step ends, and sorts what was recorded.
SimulationResult Summarize(const Graph& graph, const SimulationOptions& options, double makespan,
                           SimulationResult result);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_SIMULATION_SUMMARY_H_
