// What a person sees of the client: data on standard output, messages on standard error, and the exit code.
#ifndef WEFT_CLIENT_CONSOLE_H_
#define WEFT_CLIENT_CONSOLE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// The contract of DESIGN.md section 6; the numbers from 64 up are those of sysexits.h.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,  // the run, or what was asked for, failed
  kExitUsage = 2,
  kExitUnreachable = 69,
  kExitTryAgain = 75,
  kExitDenied = 77,
  kExitBadConfiguration = 78,
  kExitTimeout = 124,
  kExitInterrupted = 130,
};

// The exit code for an error that a coordinator, or the way to it, answered with.
ExitCode ExitCodeOf(const absl::Status& status);

// Writes all of `data` to standard output. Says so on standard error and returns kExitFailed if that fails,
// as it does on a full disk.
ExitCode PrintData(absl::string_view data);

// One line on standard error: `weft: message`.
void PrintMessage(absl::string_view message);

// The message as PrintMessage, then the code: `return Fail(kExitUsage, "..")`.
ExitCode Fail(ExitCode code, absl::string_view message);

// Standard error is a terminal that understands cursor movement (not TERM=dumb).
bool ProgressWanted();

}  // namespace weft

#endif  // WEFT_CLIENT_CONSOLE_H_
