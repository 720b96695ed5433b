// Gives the line by which a daemon's log shows an event, in one of several forms:
//
//   text       2026-11-22T14:20:11.123Z info weft-coordinator: run 3 (tiny) is running
//   logfmt     time=2026-11-22T14:20:11.123Z level=info program=weft-coordinator msg=".."
//   json       {"time":"2026-11-22T14:20:11.123Z","level":"info","program":"..","message":".."}
//   journald   <6>run 3 (tiny) is running
//
// journald reads the severity from the number (sd-daemon(3)), and has time and program of its own.
//
// An event is one line in each of them, whatever its text. Stateless.
#ifndef WEFT_BASE_LOG_LOG_FORMAT_H_
#define WEFT_BASE_LOG_LOG_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/event_line.h"

namespace weft {

enum class LogFormat : uint8_t { kText, kLogfmt, kJson, kJournald };

// Returns the names of the formats, and "auto".
std::vector<std::string> LogFormatNames();
// Returns the format of such a name. "auto" is journald's where standard error is a stream of the journal
// ($JOURNAL_STREAM), logfmt on a terminal, else JSON, which programs read. Any other name is text.
LogFormat LogFormatNamed(absl::string_view name);

// Returns the line with its end, for a time since 1970 in milliseconds.
std::string LogLine(LogFormat format, int64_t unix_ms, LogSeverity severity, absl::string_view program,
                    absl::string_view text);

}  // namespace weft

#endif  // WEFT_BASE_LOG_LOG_FORMAT_H_
