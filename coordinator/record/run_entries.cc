#include "coordinator/record/run_entries.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

const char* const kResultFiles[] = {"summary.json", "run.json",    "steps.jsonl",
                                    "hashes.jsonl", "trace.json",  "timeline.svg",
                                    "loss.svg",     "actions.csv", "events.out.tfevents.weft",
                                    "log.jsonl",    "log.1.jsonl", "replans.jsonl",
                                    "inputs.jsonl"};

}  // namespace

int64_t StepOfName(const std::string& name, bool partial) {
  absl::string_view text = name;
  if (absl::ConsumeSuffix(&text, kPartial)) {
    if (!partial) return -2;
    text = text.substr(0, text.find('.'));
  }
  if (!absl::ConsumePrefix(&text, "checkpoint")) return -2;
  if (text.empty()) return -1;
  int64_t step = -2;
  const bool digits = absl::ConsumePrefix(&text, "-") && !text.empty() &&
                      std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return digits && absl::SimpleAtoi(text, &step) ? step : -2;
}

bool IsFileOrPartial(absl::string_view name, absl::string_view file) {
  return absl::ConsumePrefix(&name, file) &&
         (name.empty() || (absl::StartsWith(name, ".") && absl::EndsWith(name, kPartial)));
}

bool IsResult(const std::string& name) {
  if (StepOfName(name, /*partial=*/true) != -2) return true;
  return std::any_of(std::begin(kResultFiles), std::end(kResultFiles),
                     [&](const char* result) { return IsFileOrPartial(name, result); });
}

bool IsFolderOfRun(const std::string& name) {
  return StepOfName(name, /*partial=*/true) != -2 || name == kFormer || absl::StartsWith(name, kReplacement);
}

}  // namespace weft
