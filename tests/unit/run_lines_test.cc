#include "coordinator/shell/run_lines.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::run_lines_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Texts(const std::vector<RunLine>& lines) {
  std::vector<std::string> texts;
  for (const RunLine& line : lines)
    texts.push_back(std::string(LogSeverityName(line.entry.severity)) + " " + line.entry.text);
  return texts;
}

TEST(RunLines, Changes_HaveALineEachAndFiguresNone) {
  RunLines lines;
  RunInfo run;
  run.id = 3;
  run.name = "tiny";
  run.state = RunState::kRunning;
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("info run 3 (tiny) is running"));
  run.steps_done = 7;
  EXPECT_THAT(lines.Of(run), IsEmpty());
  run.checkpoint_step = 10;
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("info run 3 (tiny) has the checkpoint of step 10"));
  run.restarts = 1;
  run.restart_step = 10;
  run.restart_reason = "process 1 was lost";
  run.state = RunState::kWaiting;
  run.reason = "process 1 was lost";
  EXPECT_THAT(Texts(lines.Of(run)),
              ElementsAre("warning run 3 (tiny) begins again with step 10: process 1 was lost",
                          "info run 3 (tiny) is waiting: process 1 was lost"));
  run.failed_checkpoints = 1;
  run.checkpoint_failure = "no space";
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("warning run 3 (tiny): no space"));
  run.state = RunState::kFailed;
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("warning run 3 (tiny) has failed: process 1 was lost"));
}

TEST(RunLines, RunThatPrepares_SaysOnWhichWorkers) {
  RunLines lines;
  RunInfo run;
  run.id = 3;
  run.name = "tiny";
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("info run 3 (tiny) was submitted"));
  run.state = RunState::kPreparing;
  for (int i = 0; i < 6; ++i) run.members.push_back("process " + std::to_string(i));
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("info run 3 (tiny) is preparing on process 0, process 1, "
                                                "process 2, process 3 and 2 more"));
  run.members.resize(1);
  EXPECT_THAT(Texts(lines.Of(run)), ElementsAre("info run 3 (tiny) is preparing on process 0"));
}

TEST(RunLines, WorkerThatIsLost_IsAWarning) {
  EXPECT_EQ(LineOf(WorkerChange{WorkerChange::Kind::kLost, "process 1 (w)", "it was silent", 3}),
            (LogEntry{LogSeverity::kWarning, 0, "process 1 (w) was lost: it was silent"}));
  EXPECT_EQ(LineOf(WorkerChange{WorkerChange::Kind::kExited, "process 1 (w)", ""}),
            (LogEntry{LogSeverity::kInfo, 0, "process 1 (w) left"}));
}

}  // namespace
}  // namespace weft::run_lines_test
