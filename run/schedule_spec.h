// Reads the `schedule` of a run file from its JSON value. run_spec.h has the text form of the command line.
#ifndef WEFT_RUN_SCHEDULE_SPEC_H_
#define WEFT_RUN_SCHEDULE_SPEC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_spec.h"

namespace weft {

// Reads `1f1b`, `"lpp,groups=2,ranks=4"`, `{1f1b: {}}` or `{lpp: {groups: 2, ranks: 4}, rule: sync,
// reduction: ordered, activations: retain}`; `{custom: {ranks: 4, compute: ".."}}` and `{file: {path:
// rows.csv, actions: ".."}}` as schedules/families/families.h has them. The first error stays in `status`.
ScheduleSpec ReadSchedule(const nlohmann::json& value, absl::string_view path, absl::Status& status);

nlohmann::json ToJson(const ScheduleSpec& schedule);

// Splits the text at its commas, except at those within parentheses, which a formula may have.
std::vector<std::string> SplitAtCommas(absl::string_view text);

// Splits `schedule.activations` into its names: one for all stages, or one for each.
std::vector<std::string> SplitActivations(const ScheduleSpec& schedule);

// Returns InvalidArgument if there are several names and not as many as stages.
absl::Status CheckActivationsOfStages(const ScheduleSpec& schedule, int stages);

}  // namespace weft

#endif  // WEFT_RUN_SCHEDULE_SPEC_H_
