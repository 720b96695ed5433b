#include "run/unknown_name.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "schedules/nearest.h"

namespace weft {

std::string UnknownName(absl::string_view what, absl::string_view written,
                        const std::vector<std::string>& names) {
  // A name from outside may be of any length; the message and the search for a near name must not be.
  const std::string shown =
      written.size() <= 64 ? std::string(written) : absl::StrCat(written.substr(0, 64), "..");
  std::string message = absl::StrCat("unknown ", what, " \"", shown, "\"");
  if (names.empty()) return absl::StrCat(message, "; none is allowed here");
  const std::string near = DidYouMean(shown, names);
  absl::StrAppend(&message, near);
  if (names.size() > 1 || near.empty())
    absl::StrAppend(&message, near.empty() ? "; valid here: " : " Valid here: ", absl::StrJoin(names, ", "));
  return message;
}

}  // namespace weft
