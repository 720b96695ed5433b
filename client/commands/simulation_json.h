// Writes the result of a simulation as JSON. docs/guide/simulate.md describes the fields.
#ifndef WEFT_CLIENT_COMMANDS_SIMULATION_JSON_H_
#define WEFT_CLIENT_COMMANDS_SIMULATION_JSON_H_

#include <optional>
#include <string>

#include "client/files/predicted_run.h"
#include "schedules/simulator/communication.h"

namespace weft {

// Returns the JSON text. `unit` is the unit of all times; "" for any. `jobs` lists every job, interval of
// idleness and transfer; the result must have them recorded.
std::string SimulationJson(const PreparedRun& run, const std::string& unit, const SimulationResult& result,
                           bool jobs, const std::optional<CommunicationSteps>& communication);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_SIMULATION_JSON_H_
