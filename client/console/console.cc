#include "client/console/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr int kNarrowest = 40, kWidest = 500;

ColourMode& Mode() {
  static ColourMode mode = ColourMode::kAuto;
  return mode;
}

bool IsSet(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool IsTerminal(int descriptor) {
  const char* const term = std::getenv("TERM");
  return isatty(descriptor) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

bool HasUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!IsSet(name)) continue;
    const std::string value = absl::AsciiStrToLower(std::getenv(name));
    return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

TextStyle StyleOf(int descriptor) {
  TextStyle style;
  int columns = 0;
  winsize size{};
  if (IsSet("COLUMNS") && absl::SimpleAtoi(std::getenv("COLUMNS"), &columns) && columns > 0) {
    style.width = columns;
  } else if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.width = size.ws_col;
  }
  style.width = std::clamp(style.width, kNarrowest, kWidest);
  style.colour = Mode() == ColourMode::kAlways ||
                 (Mode() == ColourMode::kAuto && IsTerminal(descriptor) && !IsSet("NO_COLOR"));
  style.unicode = HasUnicode();
  return style;
}

}  // namespace

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

ExitCode PrintJson(const nlohmann::ordered_json& json) {
  return PrintData(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void PrintMessage(absl::string_view message) {
  const std::string line = absl::StrCat("weft: ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

ExitCode Fail(ExitCode code, absl::string_view message) {
  if (!MessageStyle().colour) {
    PrintMessage(message);
    return code;
  }
  const std::string line = absl::StrCat("\x1b[1;31mweft:\x1b[0m ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

ExitCode Fail(const absl::Status& status) { return Fail(ExitCodeOf(status), status.message()); }

bool ProgressWanted() { return IsTerminal(STDERR_FILENO); }

void SetColourMode(ColourMode mode) { Mode() = mode; }

TextStyle OutputStyle() { return StyleOf(STDOUT_FILENO); }
TextStyle MessageStyle() { return StyleOf(STDERR_FILENO); }

}  // namespace weft
