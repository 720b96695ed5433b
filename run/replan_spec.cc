#include "run/replan_spec.h"

#include <climits>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

// Returns the part that "5 %", "5%" or 0.05 say; nothing for what says none from above 0 to below 1.
std::optional<double> PartOf(const nlohmann::json& value) {
  double part = 0;
  if (value.is_number()) {
    part = value.get<double>();
  } else if (value.is_string()) {
    const auto text = value.get<std::string>();
    absl::string_view percent = text;
    if (!absl::ConsumeSuffix(&percent, "%") || !absl::SimpleAtod(absl::StripAsciiWhitespace(percent), &part))
      return std::nullopt;
    part /= 100;
  }
  if (!(part > 0 && part < 1)) return std::nullopt;
  return part;
}

}  // namespace

ReplanSpec ReadReplanSpec(FileSection& file, const ScheduleSpec& schedule, absl::Status& status) {
  ReplanSpec replan;
  if (!file.Has("replan")) return replan;
  FileSection section(file.At("replan"), "replan", {"gain", "steps"}, status);
  section.Require("gain", "gain: 5 %");
  if (!section.ok()) return replan;
  const std::optional<double> gain = PartOf(section.At("gain"));
  if (!gain.has_value()) {
    section.Fail("gain", absl::StrCat("must be the part of a step's time that a better schedule has to save, "
                                      "above 0 and below 100 %, as 5 % or 0.05, not ",
                                      section.At("gain").dump()));
  }
  replan.gain = gain.value_or(0);
  section.Read("steps", replan.steps, 1, INT_MAX / 2);
  if (status.ok() && schedule.reduction == "fast") {
    file.Fail("replan",
              "keeps the run's bits, and under `reduction: fast` these depend on the schedule; use "
              "reduction: ordered");
  }
  return replan;
}

nlohmann::json ToJson(const ReplanSpec& replan) { return {{"gain", replan.gain}, {"steps", replan.steps}}; }

}  // namespace weft
