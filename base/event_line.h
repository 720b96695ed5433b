// The severity of an event, and the line by which logs show it. Pure.
#ifndef WEFT_BASE_EVENT_LINE_H_
#define WEFT_BASE_EVENT_LINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

enum class LogSeverity : uint8_t { kError, kWarning, kInfo };  // the gravest first
inline constexpr int kLogSeverities = 3;

// Returns "error", "warning" or "info"; these three; and the severity of such a name.
absl::string_view LogSeverityName(LogSeverity severity);
std::vector<std::string> LogSeverityNames();
std::optional<LogSeverity> LogSeverityNamed(absl::string_view name);

// Returns "2026-11-22T14:20:11.123Z", for a time since 1970 in milliseconds.
std::string EventTime(int64_t unix_ms);

// Returns "2026-11-22T14:20:11.123Z warning weft-worker: ..", without an end, for a time since 1970 in
// milliseconds.
std::string EventLine(int64_t unix_ms, LogSeverity severity, absl::string_view writer,
                      absl::string_view text);

}  // namespace weft

#endif  // WEFT_BASE_EVENT_LINE_H_
