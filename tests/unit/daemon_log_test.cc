#include "base/log/daemon_log.h"

#include <gtest/gtest.h>

#include <string>

namespace weft {
namespace {

TEST(DaemonLog, Line_HasTimeLevelAndProgram) {
  EXPECT_EQ(LogLine(1'795'357'211'045, LogSeverity::kInfo, "weft-coordinator", "run 3 (tiny) is running"),
            "2026-11-22T14:20:11.045Z info weft-coordinator: run 3 (tiny) is running\n");
}

TEST(DaemonLog, Listener_HearsEventsThatAreNotWritten) {
  DaemonLog log("w", LogSeverity::kError);
  std::string heard;
  log.SetListener([&](LogSeverity severity, absl::string_view text) {
    heard += std::string(text) + std::to_string(static_cast<int>(severity));
  });
  log.Info("a");
  log.Warning("b");
  EXPECT_EQ(heard, "a2b1");
  log.SetListener(nullptr);
  log.Info("c");
  EXPECT_EQ(heard, "a2b1");
}

TEST(DaemonLog, ControlCharacters_StayOnTheLine) {
  EXPECT_EQ(LogLine(0, LogSeverity::kWarning, "w", "a\nb\r\x1b[2Jc\td\x7f\xc2\x85 \xc3\xa9"),
            "1970-01-01T00:00:00.000Z warning w: a\\nb\\x0d\\x1b[2Jc d\\x7f\\x85 \xc3\xa9\n");
}

}  // namespace
}  // namespace weft
