// Writes the log of a daemon: one line an event on standard error, with the time, a level and the program's
// name.
//
// 2026-11-22T14:20:11.123Z info weft-coordinator: run 3 (tiny) is running
//
// Control characters are escaped, so that no text of a peer begins a line of its own. A line is written at
// once and whole. Thread-safe.
#ifndef WEFT_BASE_LOG_DAEMON_LOG_H_
#define WEFT_BASE_LOG_DAEMON_LOG_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

enum class LogLevel { kError, kWarning, kInfo };

class DaemonLog {
 public:
  // Writes events that are at least as grave as `least`.
  DaemonLog(std::string program, LogLevel least) : program_(std::move(program)), least_(least) {}

  void Info(absl::string_view text) const { Write(LogLevel::kInfo, text); }
  void Warning(absl::string_view text) const { Write(LogLevel::kWarning, text); }
  void Error(absl::string_view text) const { Write(LogLevel::kError, text); }

 private:
  void Write(LogLevel level, absl::string_view text) const;

  const std::string program_;
  const LogLevel least_;
};

// Returns the line with its end, for a time since 1970 in milliseconds.
std::string LogLine(int64_t unix_ms, LogLevel level, absl::string_view program, absl::string_view text);

}  // namespace weft

#endif  // WEFT_BASE_LOG_DAEMON_LOG_H_
