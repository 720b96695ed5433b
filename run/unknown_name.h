// Words the message about a name that does not exist: the written name, the nearest valid name if there is
// one, and the valid ones.
//
// It serves unknown keys of run files, schedules, parameters and flags. Pure.
#ifndef WEFT_RUN_UNKNOWN_NAME_H_
#define WEFT_RUN_UNKNOWN_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// Returns `unknown key "stagse"; did you mean "stages"? Valid here: model, stages, train`.
std::string UnknownName(absl::string_view what, absl::string_view written,
                        const std::vector<std::string>& names);

}  // namespace weft

#endif  // WEFT_RUN_UNKNOWN_NAME_H_
