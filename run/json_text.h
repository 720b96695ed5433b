// Parses JSON that came from outside: a submitted specification, a profile, a trace, the files of a
// checkpoint.
//
// nlohmann-json parses without recursion, but copies and prints a value with it, so some ten thousand nested
// brackets end the process. Nothing in Weft needs more than a few levels. So this parser bounds the nesting
// before it makes a value. Every reader of JSON that another process or a user wrote calls ParseJson.
//
// Pure. Failure: InvalidArgument "is not JSON" or the depth, the limit and the place.
#ifndef WEFT_RUN_JSON_TEXT_H_
#define WEFT_RUN_JSON_TEXT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace weft {

// The most lists and objects within one another; a run file in YAML has the same limit.
inline constexpr int kMaxJsonDepth = 32;

// Parses the text. The message of a failure goes behind the name of what was read: "is nested 33 levels deep,
// at byte 40; ..".
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);

// Checks the depth alone, for readers that parse by themselves. A text that is not JSON may pass; its parser
// refuses it.
absl::Status CheckJsonDepth(absl::string_view text);

}  // namespace weft

#endif  // WEFT_RUN_JSON_TEXT_H_
