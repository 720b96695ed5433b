// What a person meant who wrote a name that does not exist: the valid name with the least edit distance.
//
// For unknown keys of run files, unknown schedules and their parameters. Pure.
#ifndef WEFT_PROTO_RUN_NEAREST_NAME_H_
#define WEFT_PROTO_RUN_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// Least number of insertions, deletions, replacements and swaps of neighbours that turn one text into the
// other.
int EditDistance(absl::string_view a, absl::string_view b);

// The valid name nearest to `written`, the first of equals; "" if there are no names.
std::string NearestName(absl::string_view written, absl::Span<const std::string> names);

// `unknown key "stagse"; did you mean "stages"? Valid here: model, stages, train`
std::string UnknownName(absl::string_view what, absl::string_view written,
                        absl::Span<const std::string> names);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_NEAREST_NAME_H_
