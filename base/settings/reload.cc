#include "base/settings/reload.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr char kLevel[] = "log-level";

}  // namespace

void Reload(const absl::Status& read, const std::vector<Setting>& now, const std::vector<Setting>& at_start,
            absl::string_view watched, DaemonLog* log) {
  if (!read.ok()) return log->Warning(absl::StrCat("the configuration is not taken: ", read.message()));
  std::string level;
  for (const Setting& setting : now) {
    if (setting.name == kLevel) level = setting.value;
  }
  log->SetLevel(LogSeverityNamed(level).value_or(LogSeverity::kInfo));
  std::vector<std::string> later = Changed(at_start, now);
  later.erase(std::remove(later.begin(), later.end(), kLevel), later.end());
  log->Info(absl::StrCat(
      "reloaded: log level ", level, "; ", watched, " are taken whenever they change",
      later.empty() ? "" : "; these take effect at the next start: ", absl::StrJoin(later, ", ")));
}

}  // namespace weft
