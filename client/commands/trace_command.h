// Runs `weft trace`: says what the trace of a run holds, of one that goes on so far, and writes it for
// Perfetto or as OpenTelemetry spans.
#ifndef WEFT_CLIENT_COMMANDS_TRACE_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_TRACE_COMMAND_H_

#include <string>

#include "client/commands/coordinator_access.h"

namespace weft {

struct TraceOptions {
  CoordinatorOptions coordinator;
  std::string run;       // number of a coordinator's run, output folder, or trace file
  std::string otlp;      // file of the spans; empty: none
  std::string perfetto;  // file of the trace itself; empty: none
};

// Returns kExitBadConfiguration for a run without a trace, kExitFailed if a file cannot be written.
ExitCode RunTraceCommand(const TraceOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_TRACE_COMMAND_H_
