#include "base/settings/reload.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr char kLevel[] = "log-level";

}  // namespace

bool Reload(const absl::Status& read, const std::vector<Setting>& now, const std::vector<Setting>& at_start,
            const Reloadable& what, DaemonLog* log) {
  if (!read.ok()) {
    log->Warning(absl::StrCat("the configuration is not taken: ", read.message()));
    return false;
  }
  std::string level, limits;
  for (const Setting& setting : now) {
    if (setting.name == kLevel) level = setting.value;
    if (std::find(what.limits.begin(), what.limits.end(), setting.name) != what.limits.end())
      absl::StrAppend(&limits, ", ", setting.name, " ", setting.value);
  }
  log->SetLevel(LogSeverityNamed(level).value_or(LogSeverity::kInfo));
  std::vector<std::string> later = Changed(at_start, now);
  std::erase_if(later, [&](const std::string& name) {
    return name == kLevel || std::find(what.limits.begin(), what.limits.end(), name) != what.limits.end();
  });
  log->Info(absl::StrCat(
      "reloaded: log level ", level, limits, "; ", what.watched, " are taken whenever they change",
      later.empty() ? "" : "; these take effect at the next start: ", absl::StrJoin(later, ", ")));
  return true;
}

void LastReload::Note(bool taken) {
  if (taken) {
    taken_unix_seconds_ =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  taken_ = taken;
}

}  // namespace weft
