#include "base/event_line.h"

#include <ctime>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft {
namespace {

constexpr const char* kNames[kLogSeverities] = {"error", "warning", "info"};

}  // namespace

absl::string_view LogSeverityName(LogSeverity severity) { return kNames[static_cast<int>(severity)]; }

std::vector<std::string> LogSeverityNames() { return {std::begin(kNames), std::end(kNames)}; }

std::optional<LogSeverity> LogSeverityNamed(absl::string_view name) {
  for (int s = 0; s < kLogSeverities; ++s) {
    if (name == kNames[s]) return static_cast<LogSeverity>(s);
  }
  return std::nullopt;
}

std::string EventTime(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, unix_ms % 1000);
}

std::string EventLine(int64_t unix_ms, LogSeverity severity, absl::string_view writer,
                      absl::string_view text) {
  return absl::StrCat(EventTime(unix_ms), " ", LogSeverityName(severity), " ", writer, ": ", text);
}

}  // namespace weft
