// Adds the flags of a daemon's log, and of its flight recorder, to its command line.
#ifndef WEFT_BASE_LOG_LOG_FLAGS_H_
#define WEFT_BASE_LOG_LOG_FLAGS_H_

#include <string>

#include "base/log/log_format.h"

namespace CLI {
class App;
}  // namespace CLI

namespace weft {

struct LogFlags {
  std::string level = "info";
  std::string format = "auto";
  std::string flight_recorder;  // folder for dumps (flight_recorder.h)

  // Return what the flags name, once they have been checked.
  LogSeverity least() const { return LogSeverityNamed(level).value(); }
  LogFormat line_format() const { return LogFormatNamed(format); }
};

void AddLogFlags(CLI::App& app, LogFlags& flags);

}  // namespace weft

#endif  // WEFT_BASE_LOG_LOG_FLAGS_H_
