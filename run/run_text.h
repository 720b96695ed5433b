// Parses the JSON text of a run's specification, as a submission and the wire carry it.
#ifndef WEFT_RUN_RUN_TEXT_H_
#define WEFT_RUN_RUN_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "run/run_spec.h"

namespace weft {

// Parses the text. InvalidArgument for text that is not JSON or not a valid run.
absl::StatusOr<RunSpec> ParseRunText(const std::string& text);

}  // namespace weft

#endif  // WEFT_RUN_RUN_TEXT_H_
