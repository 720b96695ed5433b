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
                 "standard error is the journal, logfmt on a terminal, else json")
      ->check(CLI::IsMember(LogFormatNames()))
      ->type_name("FORMAT");
  app.add_option(
         "--flight-recorder", flags.flight_recorder,
         "Folder, which must be there, for files with the last events of the process, written when it "
         "stalls, at SIGUSR1 and when a fatal signal ends it; default: $LOGS_DIRECTORY of systemd, "
         "else $TMPDIR or /tmp")
      ->type_name("DIR");
}

}  // namespace weft
