// The message about a name that does not exist: what was written, the valid name that is near to it if there is
// one, the valid ones.
//
// For unknown keys of run files, schedules, parameters and flags. Pure.
#ifndef WEFT_PROTO_RUN_UNKNOWN_NAME_H_
#define WEFT_PROTO_RUN_UNKNOWN_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// `unknown key "stagse"; did you mean "stages"? Valid here: model, stages, train`
std::string UnknownName(absl::string_view what, absl::string_view written,
                        const std::vector<std::string>& names);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_UNKNOWN_NAME_H_
