#include "schedules/nearest.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

int Edits(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<int>> edits(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      int& least = edits[i][j];
      least = static_cast<int>(std::max(i, j));
      if (i == 0 || j == 0) continue;
      least = std::min(
          {edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) least = std::min(least, edits[i - 2][j - 2] + 1);
    }
  }
  return edits[a.size()][b.size()];
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  int least = 0;
  for (const std::string& c : candidates) {
    const int edits = Edits(word, c);
    const auto longer = static_cast<int>(std::max(word.size(), c.size()));
    const bool begins = word.size() >= 3 && absl::StartsWith(c, word);
    // Two single letters are never alike.
    const bool near = edits <= std::max(1, longer / 3) && word.size() > 1 && c.size() > 1;
    if (edits > 0 && !near && !begins) continue;
    if (best.empty() || edits < least) {
      best = c;
      least = edits;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = Nearest(word, candidates);
  return near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?");
}

}  // namespace weft
