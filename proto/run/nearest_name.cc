#include "proto/run/nearest_name.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

int EditDistance(absl::string_view a, absl::string_view b) {
  // Rows i-2, i-1 and i of the table of distances between the first i letters of a and the first j of b.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string NearestName(absl::string_view written, absl::Span<const std::string> names) {
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const auto& x, const auto& y) {
    return EditDistance(written, x) < EditDistance(written, y);
  });
  return nearest == names.end() ? "" : *nearest;
}

std::string UnknownName(absl::string_view what, absl::string_view written,
                        absl::Span<const std::string> names) {
  // A name from outside may be of any length; a message should not be.
  const std::string shown =
      written.size() <= 64 ? std::string(written) : absl::StrCat(written.substr(0, 64), "..");
  std::string message = absl::StrCat("unknown ", what, " \"", shown, "\"");
  if (names.empty()) return absl::StrCat(message, "; none is allowed here");
  absl::StrAppend(&message, "; did you mean \"", NearestName(absl::string_view(shown), names), "\"?");
  if (names.size() > 1) absl::StrAppend(&message, " Valid here: ", absl::StrJoin(names, ", "));
  return message;
}

}  // namespace weft
