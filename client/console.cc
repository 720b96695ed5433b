#include "client/console.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
      return kExitUnreachable;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
      return kExitTryAgain;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitDenied;
    case absl::StatusCode::kInvalidArgument:
      return kExitBadConfiguration;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

ExitCode PrintData(absl::string_view data) {
  if (std::fwrite(data.data(), 1, data.size(), stdout) == data.size() && std::fflush(stdout) == 0)
    return kExitOk;
  return Fail(kExitFailed, absl::StrCat("cannot write to standard output: ", std::strerror(errno)));
}

void PrintMessage(absl::string_view message) {
  const std::string line = absl::StrCat("weft: ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

ExitCode Fail(ExitCode code, absl::string_view message) {
  PrintMessage(message);
  return code;
}

bool ProgressWanted() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace weft
