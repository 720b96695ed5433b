// What `weft compare --measure` prints: for people, and for programs (docs/guide/outputs.md). Pure.
#ifndef WEFT_CLIENT_MEASURED_TABLE_H_
#define WEFT_CLIENT_MEASURED_TABLE_H_

#include <string>
#include <vector>

#include "client/measured_schedules.h"
#include "nlohmann/json.hpp"
#include "proto/run/run_spec.h"

namespace weft {

// Of rows in their order; `steps` is how many were trained.
std::string MeasuredTable(const RunSpec& run, int steps, const std::vector<MeasuredRow>& rows);
nlohmann::ordered_json MeasuredJson(const RunSpec& run, int steps, const std::vector<MeasuredRow>& rows);

}  // namespace weft

#endif  // WEFT_CLIENT_MEASURED_TABLE_H_
