// Writes the client's output for a person: data on standard output, messages on standard error, and the exit
// code.
#ifndef WEFT_CLIENT_CONSOLE_CONSOLE_H_
#define WEFT_CLIENT_CONSOLE_CONSOLE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "schedules/drawing/drawing.h"

namespace weft {

// The exit codes of docs/guide/command_line.md; the numbers from 64 to 78 are those of sysexits.h.
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

// Returns the exit code for an error of a coordinator, or of the connection to it.
ExitCode ExitCodeOf(const absl::Status& status);

// Writes all of `data` to standard output. Says so on standard error and returns kExitFailed if that fails,
// as it does on a full disk.
ExitCode PrintData(absl::string_view data);

// Prints the value over several lines, as PrintData. Bytes that are not UTF-8, as a path may have, come out
// as the replacement character U+FFFD: JSON cannot hold them.
ExitCode PrintJson(const nlohmann::ordered_json& json);

// Writes one line to standard error: `weft: message`.
void PrintMessage(absl::string_view message);

// Prints the message as PrintMessage and returns the code: `return Fail(kExitUsage, "..")`.
ExitCode Fail(ExitCode code, absl::string_view message);

// Prints the status's message and returns its exit code (ExitCodeOf).
ExitCode Fail(const absl::Status& status);

// Returns true if standard error is a terminal that understands cursor movement (not TERM=dumb).
bool ProgressWanted();

// Says whether output has colours. kAuto: on a terminal that understands them (not TERM=dumb), unless
// NO_COLOR is set (https://no-color.org).
enum class ColourMode : uint8_t { kAuto, kAlways, kNever };

// Sets the mode for all output from now on; before, it is kAuto. Main thread, before any other exists.
void SetColourMode(ColourMode mode);

// Return how texts are written to standard output and to standard error: as wide as $COLUMNS says, else as
// the terminal, else 100 columns; without colour where that is not wanted; ASCII only where the locale's
// characters (LC_ALL, LC_CTYPE, LANG) are not UTF-8.
TextStyle OutputStyle();
TextStyle MessageStyle();

}  // namespace weft

#endif  // WEFT_CLIENT_CONSOLE_CONSOLE_H_
