// Shows what a run of a coordinator waits for: each root once, and what each rank does or waits for, as text
// and as JSON. Pure.
#ifndef WEFT_CLIENT_RUNS_WAITS_TEXT_H_
#define WEFT_CLIENT_RUNS_WAITS_TEXT_H_

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "proto/session/run_waits.h"
#include "schedules/drawing/drawing.h"

namespace weft {

// Returns true if the run runs, and has not got on for some time.
bool StandsStill(const RunWaits& waits);

// Return the waits of the rank `only` and of those in its chain, or, for -1, of all ranks. The text has at
// most 32 of them.
std::string WaitsText(const RunWaits& waits, Rank only, const TextStyle& style = {});
nlohmann::ordered_json WaitsJson(const RunWaits& waits, Rank only);

// Returns {"name": "F s2 m3 t17", "kind": "forward", "step": 17, "stage": 2, "microbatch": 3}.
nlohmann::ordered_json JobJson(const Job& job);

}  // namespace weft

#endif  // WEFT_CLIENT_RUNS_WAITS_TEXT_H_
