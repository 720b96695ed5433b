// Makes the result of a simulation at its start, and derives its figures at its end. Private to the
// simulator.
#ifndef WEFT_SCHEDULES_SIMULATOR_SIMULATION_SUMMARY_H_
#define WEFT_SCHEDULES_SIMULATOR_SIMULATION_SUMMARY_H_

#include <optional>
#include <vector>

#include "schedules/simulator/simulate.h"

namespace weft {

// Returns the result of a run that has not begun. `held_bytes`: by rank, beside activations; empty for none.
SimulationResult EmptyResult(const Graph& graph, const SimulationOptions& options,
                             const std::vector<double>& held_bytes);

// Returns the time per step in steady state, between two steps of the run's second half that end before the
// final drain: over as many steps as what happens takes to repeat, or, where it does not, over all of them.
// `cycle` is the number of steps that can be under way together. Returns nothing if too few steps end before
// the drain.
std::optional<double> SteadyPeriod(const SimulationResult& result, int cycle);

// Derives what the result says of the whole run, but its period, and sorts what was recorded.
SimulationResult Summarize(const Graph& graph, const SimulationOptions& options, double makespan,
                           SimulationResult result);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_SIMULATION_SUMMARY_H_
