#include "base/log/log_format.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/plain_text.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr size_t kMaxBytes = 64 << 10;

constexpr const char* kNames[] = {"text", "logfmt", "json", "journald"};

bool IsJournal(int descriptor) {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat is {};
  return stream != nullptr && fstat(descriptor, &is) == 0 &&
         stream == absl::StrCat(is.st_dev, ":", is.st_ino);
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

// Returns the severity's number of syslog(3).
int PriorityOf(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kError:
      return 3;
    case LogSeverity::kWarning:
      return 4;
    case LogSeverity::kInfo:
      return 6;
  }
  return 6;
}

}  // namespace

std::vector<std::string> LogFormatNames() {
  std::vector<std::string> names = {"auto"};
  names.insert(names.end(), std::begin(kNames), std::end(kNames));
  return names;
}

LogFormat LogFormatNamed(absl::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<LogFormat>(i);
  }
  if (name != "auto") return LogFormat::kText;
  if (IsJournal(STDERR_FILENO)) return LogFormat::kJournald;
  return isatty(STDERR_FILENO) == 1 ? LogFormat::kLogfmt : LogFormat::kJson;
}

std::string LogLine(LogFormat format, int64_t unix_ms, LogSeverity severity, absl::string_view program,
                    absl::string_view text) {
  switch (format) {
    case LogFormat::kText:
      break;
    case LogFormat::kLogfmt:
      return absl::StrCat("time=", EventTime(unix_ms), " level=", LogSeverityName(severity),
                          " program=", program, " msg=", Quoted(PlainText(text, kMaxBytes)), "\n");
    case LogFormat::kJson: {
      const nlohmann::ordered_json line = {{"time", EventTime(unix_ms)},
                                           {"level", LogSeverityName(severity)},
                                           {"program", program},
                                           {"message", CleanText(text, kMaxBytes)}};
      return absl::StrCat(line.dump(), "\n");
    }
    case LogFormat::kJournald:
      return absl::StrCat("<", PriorityOf(severity), ">", PlainText(text, kMaxBytes), "\n");
  }
  return absl::StrCat(EventLine(unix_ms, severity, program, PlainText(text, kMaxBytes)), "\n");
}

}  // namespace weft
