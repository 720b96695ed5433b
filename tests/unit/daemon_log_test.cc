#include "base/log/daemon_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::daemon_log_test {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(DaemonLog, Listener_HearsEventsThatAreNotWritten) {
  DaemonLog log("w", LogSeverity::kError);
  std::string heard;
  log.SetListener(&heard, [&](LogSeverity severity, absl::string_view text) {
    heard += std::string(text) + std::to_string(static_cast<int>(severity));
  });
  log.Info("a");
  log.Warning("b");
  EXPECT_EQ(heard, "a2b1");
  log.SetListener(&heard, nullptr);
  log.Info("c");
  EXPECT_EQ(heard, "a2b1");
}

TEST(DaemonLog, EventOfASource_IsHeardByItsListenerAlone) {
  DaemonLog log("w", LogSeverity::kError);
  std::string first, second;
  for (std::string* heard : {&first, &second}) {
    log.SetListener(heard, [heard](LogSeverity, absl::string_view text) { *heard += std::string(text); });
  }
  log.Write(LogSeverity::kInfo, "a", &first);
  log.Write(LogSeverity::kInfo, "b", &second);
  log.Info("c");
  EXPECT_EQ(first, "ac");
  EXPECT_EQ(second, "bc");
}

// Standard error is a pipe as long as it lives.
class PipedError {
 public:
  PipedError() : before_(dup(STDERR_FILENO)) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    read_ = ends[0];
    fcntl(read_, F_SETFL, O_NONBLOCK);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  ~PipedError() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(read_);
  }
  PipedError(const PipedError&) = delete;
  PipedError& operator=(const PipedError&) = delete;

  // Returns the lines that are there. The last one may have no end.
  std::vector<std::string> Read() {
    std::string text(1 << 20, 0);
    const ssize_t n = read(read_, text.data(), text.size());
    text.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return absl::StrSplit(absl::StripSuffix(text, "\n"), '\n');
  }

 private:
  const int before_;
  int read_ = -1;
};

TEST(DaemonLog, Format_IsThatOfEachLine) {
  PipedError error;
  DaemonLog("w", LogSeverity::kInfo, LogFormat::kJournald).Warning("low on memory");
  DaemonLog("w", LogSeverity::kInfo, LogFormat::kLogfmt).Info("up");
  EXPECT_THAT(error.Read(), ElementsAre("<4>low on memory", EndsWith(" level=info program=w msg=\"up\"")));
}

TEST(DaemonLog, FullPipe_LosesLinesThatTheNextOneCounts) {
  PipedError error;
  const DaemonLog log("w", LogSeverity::kInfo);
  constexpr int kLines = 3000;
  for (int i = 0; i < kLines; ++i) log.Info(absl::StrCat("line ", i, " ", std::string(100, 'x')));
  const std::vector<std::string> first = error.Read();
  ASSERT_GT(first.size(), 100u);
  ASSERT_LT(first.size(), size_t{kLines});
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_THAT(first[i], HasSubstr(absl::StrCat("w: line ", i, " x")));
    EXPECT_THAT(first[i], EndsWith("x"));
  }
  log.Info("after");
  log.Info("last");
  EXPECT_THAT(error.Read(),
              ElementsAre(HasSubstr(absl::StrCat("warning w: ", kLines - first.size(),
                                                 " lines are lost: nobody read standard error")),
                          HasSubstr("after"), HasSubstr("last")));
}

TEST(DaemonLog, LineThatIsCut_StandsAlone) {
  PipedError error;
  const DaemonLog log("w", LogSeverity::kInfo);
  for (int i = 0; i < 3; ++i) log.Info(std::string(25000, 'x'));
  log.Info("lost");
  const std::vector<std::string> first = error.Read();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_LT(first[2].size(), 25000u);
  log.Info("after");
  EXPECT_THAT(error.Read(), ElementsAre("", HasSubstr("2 lines are lost"), HasSubstr("after")));
}

}  // namespace
}  // namespace weft::daemon_log_test
