#include "base/log/daemon_log.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/plain_text.h"

namespace weft {
namespace {

constexpr const char* kLevels[] = {"error", "warning", "info"};
constexpr size_t kMaxBytes = 64 << 10;

}  // namespace

std::vector<std::string> LogLevelNames() { return {std::begin(kLevels), std::end(kLevels)}; }

LogLevel LogLevelNamed(absl::string_view name) {
  for (const LogLevel level : {LogLevel::kError, LogLevel::kWarning}) {
    if (name == kLevels[static_cast<int>(level)]) return level;
  }
  return LogLevel::kInfo;
}

std::string LogLine(int64_t unix_ms, LogLevel level, absl::string_view program, absl::string_view text) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ %s %s: %s\n", utc.tm_year + 1900,
                         utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, unix_ms % 1000,
                         kLevels[static_cast<int>(level)], program, PlainText(text, kMaxBytes));
}

void DaemonLog::SetListener(Listener listener) {
  MutexLock lock(mu_);
  listener_ = std::move(listener);
}

void DaemonLog::Write(LogLevel level, absl::string_view text) const {
  {
    MutexLock lock(mu_);
    if (listener_) listener_(level, text);
  }
  if (level > least_) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const std::string line = LogLine(now, level, program_, text);
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;  // nobody reads
    done += static_cast<size_t>(n);
  }
}

}  // namespace weft
