#include "base/log/log_flags.h"

#include "CLI/CLI.hpp"

namespace weft {

void AddLogFlags(CLI::App& app, LogFlags& flags) {
  app.add_option("--log-level", flags.level,
                 "Least grave of what is logged: error, warning or info (default); SIGHUP takes a new one")
      ->check(CLI::IsMember(LogSeverityNames()))
      ->type_name("LEVEL");
  app.add_option("--log-format", flags.format,
                 "Form of a line of the log: text, logfmt, json or journald; auto (default): journald where "
                 "standard error is the journal, else text")
      ->check(CLI::IsMember(LogFormatNames()))
      ->type_name("FORMAT");
}

}  // namespace weft
