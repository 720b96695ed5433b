// Reads the `replan` of a run file: whether the run goes on under a better schedule by itself when its ranks
// are not as fast as its schedule suits.
#ifndef WEFT_RUN_REPLAN_SPEC_H_
#define WEFT_RUN_REPLAN_SPEC_H_

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "run/file_section.h"
#include "run/run_spec.h"

namespace weft {

// Reads `replan: {gain: 5 %, steps: 20}`. The first error stays in `status`.
ReplanSpec ReadReplanSpec(FileSection& file, const ScheduleSpec& schedule, absl::Status& status);

nlohmann::json ToJson(const ReplanSpec& replan);

}  // namespace weft

#endif  // WEFT_RUN_REPLAN_SPEC_H_
