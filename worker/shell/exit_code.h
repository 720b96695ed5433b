// Defines how weft-worker ends: its exit codes, and the message that goes with a failure.
#ifndef WEFT_WORKER_SHELL_EXIT_CODE_H_
#define WEFT_WORKER_SHELL_EXIT_CODE_H_

#include "absl/status/status.h"

namespace weft {

enum WorkerExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 69,
  kTryAgain = 75,
  kDenied = 77,
  kBadConfiguration = 78,
  kInterrupted = 130
};

// Prints the message to stderr. Returns `code`.
int Complain(const absl::Status& status, int code);

// Returns the exit code for a failure of this kind.
int CodeOf(const absl::Status& status);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_EXIT_CODE_H_
