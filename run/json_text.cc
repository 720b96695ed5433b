#include "run/json_text.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

absl::Status CheckJsonDepth(absl::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth <= kMaxJsonDepth) continue;
      return absl::InvalidArgumentError(absl::StrCat("is nested ", depth, " levels deep at byte ", i,
                                                     "; at most ", kMaxJsonDepth, " levels are allowed"));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text) {
  if (absl::Status s = CheckJsonDepth(text); !s.ok()) return s;
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  return json;
}

}  // namespace weft
