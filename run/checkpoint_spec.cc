#include "run/checkpoint_spec.h"

#include <climits>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "run/file_section.h"

namespace weft {
namespace {

constexpr int kMaxSeconds = 365 * 24 * 3600;
constexpr int kLeastKept = 2;  // if the newest proves damaged, there is one before
constexpr int kMaxKept = 1'000'000;

// Parses "90s", "10m", "2h".
std::optional<int> ParseSeconds(absl::string_view text) {
  if (text.size() < 2) return std::nullopt;
  const char unit = text.back();
  const int seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
  text.remove_suffix(1);
  const bool digits = text.find_first_not_of("0123456789") == absl::string_view::npos;
  int count = 0;
  if (seconds == 0 || !digits || !absl::SimpleAtoi(text, &count)) return std::nullopt;
  if (count < 1 || count > kMaxSeconds / seconds) return std::nullopt;
  return count * seconds;
}

}  // namespace

CheckpointSpec ReadCheckpointSpec(FileSection& file, absl::Status& status) {
  CheckpointSpec checkpoint;
  if (!file.Has("checkpoint")) return checkpoint;
  if (file.At("checkpoint").is_string()) {
    checkpoint.none = file.At("checkpoint") == "none";
    if (!checkpoint.none)
      file.Fail("checkpoint", absl::StrCat("must be {every: 100, keep: 2}, or none, not \"",
                                           file.At("checkpoint").get<std::string>(), "\""));
    return checkpoint;
  }
  FileSection section(file.At("checkpoint"), "checkpoint", {"every", "keep"}, status);
  section.Require("every", "every: 100 (steps), or every: 10m");
  if (section.ok() && section.At("every").is_string()) {
    const std::optional<int> seconds = ParseSeconds(section.At("every").get<std::string>());
    if (seconds.has_value()) {
      checkpoint.every_seconds = *seconds;
    } else {
      section.Fail("every",
                   absl::StrCat("must be a number of steps, or a time of 1s to a year, as 30s, 10m or 2h, "
                                "not \"",
                                section.At("every").get<std::string>(), "\""));
    }
  } else {
    section.Read("every", checkpoint.every_steps, 1, INT_MAX / 2);
  }
  section.Read("keep", checkpoint.keep, kLeastKept, kMaxKept);
  return checkpoint;
}

void CheckNeedsNone(const RunSpec& spec, absl::Status& status) {
  if (!status.ok() || !spec.checkpoint.none) return;
  const char* needs = spec.validate.any() ? "validate" : spec.replan.any() ? "replan" : nullptr;
  if (needs == nullptr) return;
  status = ErrorAt("checkpoint", absl::StrCat("none: saves nothing, but `", needs,
                                              "` goes by checkpoints; leave one of them out"));
}

nlohmann::json ToJson(const CheckpointSpec& checkpoint) {
  if (checkpoint.none) return "none";
  nlohmann::json json = {{"keep", checkpoint.keep}};
  if (checkpoint.every_steps > 0) {
    json["every"] = checkpoint.every_steps;
  } else {
    json["every"] = absl::StrCat(checkpoint.every_seconds, "s");
  }
  return json;
}

}  // namespace weft
