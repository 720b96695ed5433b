// The JSON form of a simulation's result: the contract of DESIGN.md section 4.
#ifndef WEFT_CLIENT_SIMULATION_JSON_H_
#define WEFT_CLIENT_SIMULATION_JSON_H_

#include <optional>
#include <string>

#include "schedules/communication.h"
#include "schedules/simulate.h"

namespace weft {

// `jobs` lists every job; the result must have them recorded.
std::string SimulationJson(const Schedule& schedule, int steps, const SimulationResult& result, bool jobs,
                           const std::optional<CommunicationSteps>& communication);

}  // namespace weft

#endif  // WEFT_CLIENT_SIMULATION_JSON_H_
