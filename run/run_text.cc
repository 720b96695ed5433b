#include "run/run_text.h"

#include "absl/strings/str_cat.h"
#include "run/json_text.h"

namespace weft {

absl::StatusOr<RunSpec> ParseRunText(const std::string& text) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text);
  if (!json.ok())
    return absl::InvalidArgumentError(absl::StrCat("the run's specification ", json.status().message()));
  return ParseRunSpec(*json);
}

}  // namespace weft
