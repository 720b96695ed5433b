#include "base/log/log_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft::log_format_test {
namespace {

constexpr int64_t kTime = 1'795'357'211'045;
constexpr absl::string_view kHostile = "a\nb\r\x1b[2Jc\td \"e\" \\ \x7f\xc2\x85 \xc3\xa9 \xff";

std::string Line(LogFormat format, absl::string_view text, LogSeverity severity = LogSeverity::kInfo) {
  return LogLine(format, kTime, severity, "weft-coordinator", text);
}

TEST(LogFormat, Text_HasTimeLevelAndProgram) {
  EXPECT_EQ(Line(LogFormat::kText, "run 3 (tiny) is running"),
            "2026-11-22T14:20:11.045Z info weft-coordinator: run 3 (tiny) is running\n");
}

TEST(LogFormat, TextWithControlCharacters_StaysOnItsLine) {
  EXPECT_EQ(Line(LogFormat::kText, kHostile, LogSeverity::kWarning),
            "2026-11-22T14:20:11.045Z warning weft-coordinator: a\\nb\\x0d\\x1b[2Jc d \"e\" \\ \\x7f\\x85 "
            "\xc3\xa9 ?\n");
}

TEST(LogFormat, Logfmt_QuotesTheText) {
  EXPECT_EQ(Line(LogFormat::kLogfmt, "run \"x\" is\nrunning"),
            "time=2026-11-22T14:20:11.045Z level=info program=weft-coordinator msg=\"run \\\"x\\\" "
            "is\\\\nrunning\"\n");
}

TEST(LogFormat, Json_IsAnObjectOnALineWithTheTextAsItIs) {
  const std::string line = Line(LogFormat::kJson, kHostile, LogSeverity::kError);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto object = nlohmann::json::parse(line);
  EXPECT_EQ(object.at("time"), "2026-11-22T14:20:11.045Z");
  EXPECT_EQ(object.at("level"), "error");
  EXPECT_EQ(object.at("program"), "weft-coordinator");
  EXPECT_EQ(object.at("message"), "a\nb\r\x1b[2Jc\td \"e\" \\ \x7f\xc2\x85 \xc3\xa9 ?");
  EXPECT_EQ(object.size(), 4u);
}

TEST(LogFormat, Journald_HasThePriorityAndTheText) {
  EXPECT_EQ(Line(LogFormat::kJournald, "up"), "<6>up\n");
  EXPECT_EQ(Line(LogFormat::kJournald, "low", LogSeverity::kWarning), "<4>low\n");
  EXPECT_EQ(Line(LogFormat::kJournald, "gone\n<0>forged", LogSeverity::kError), "<3>gone\\n<0>forged\n");
}

TEST(LogFormat, Auto_IsTheJournalsWhereStandardErrorIsIts) {
  struct stat is {};
  ASSERT_EQ(fstat(STDERR_FILENO, &is), 0);
  setenv("JOURNAL_STREAM", absl::StrCat(is.st_dev, ":", is.st_ino).c_str(), 1);
  EXPECT_EQ(LogFormatNamed("auto"), LogFormat::kJournald);
  EXPECT_EQ(LogFormatNamed("text"), LogFormat::kText);
  unsetenv("JOURNAL_STREAM");
}

// Makes the descriptor standard error until the end.
class StandardError {
 public:
  explicit StandardError(int descriptor) : kept_(dup(STDERR_FILENO)) { dup2(descriptor, STDERR_FILENO); }
  ~StandardError() {
    dup2(kept_, STDERR_FILENO);
    close(kept_);
  }

 private:
  const int kept_;
};

TEST(LogFormat, Auto_IsLogfmtOnATerminal_ElseJson) {
  setenv("JOURNAL_STREAM", "1:2", 1);  // of another stream
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(end, 0);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  LogFormat on_terminal = LogFormat::kText, on_pipe = LogFormat::kText, named = LogFormat::kText;
  {
    const StandardError here(end);
    on_terminal = LogFormatNamed("auto");
    named = LogFormatNamed("json");
  }
  {
    const StandardError here(pipe_ends[1]);
    on_pipe = LogFormatNamed("auto");
  }
  for (const int descriptor : {terminal, end, pipe_ends[0], pipe_ends[1]}) close(descriptor);
  unsetenv("JOURNAL_STREAM");
  EXPECT_EQ(on_terminal, LogFormat::kLogfmt);
  EXPECT_EQ(on_pipe, LogFormat::kJson);
  EXPECT_EQ(named, LogFormat::kJson) << "a format that was named is taken";
}

}  // namespace
}  // namespace weft::log_format_test
