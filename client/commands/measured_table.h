// Prints the results of `weft compare --measure`: for people, and for programs (docs/guide/outputs.md). Pure.
#ifndef WEFT_CLIENT_COMMANDS_MEASURED_TABLE_H_
#define WEFT_CLIENT_COMMANDS_MEASURED_TABLE_H_

#include <string>
#include <vector>

#include "client/commands/measured_schedules.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"
#include "schedules/drawing/drawing.h"

namespace weft {

// The conditions of the measurement.
struct Measuring {
  std::string sizes;  // SizesText (contestants.h)
  int steps = 1, repeats = 1;
  int cores = 0;       // cores that the processes could use; 0 where their number says nothing
  bool fleet = false;  // on workers of a coordinator, not on this machine
  TextStyle style = {};
};

// Returns the table of the rows in their order.
std::string MeasuredTable(const RunSpec& run, const Measuring& measuring,
                          const std::vector<MeasuredRow>& rows);
nlohmann::ordered_json MeasuredJson(const RunSpec& run, const Measuring& measuring,
                                    const std::vector<MeasuredRow>& rows);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_MEASURED_TABLE_H_
