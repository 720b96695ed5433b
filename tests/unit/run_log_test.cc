#include "proto/session/run_log.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::run_log_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunLogLine Line(const std::string& text, int32_t process = -1, std::vector<Rank> ranks = {}) {
  return {1,
          0,
          process,
          process < 0 ? "coordinator" : "process 1",
          std::move(ranks),
          {LogSeverity::kInfo, 0, text}};
}

std::vector<std::string> Texts(const RunLogPart& part) {
  std::vector<std::string> texts;
  for (const RunLogLine& line : part.lines) texts.push_back(line.entry.text);
  return texts;
}

TEST(RunLog, AskedAgainBehindTheLast_GivesEachLineOnce) {
  RunLog log;
  EXPECT_THAT(log.After(0).lines, IsEmpty());
  log.Add(Line("a"));
  log.Add(Line("b"));
  const RunLogPart first = log.After(0);
  EXPECT_THAT(Texts(first), ElementsAre("a", "b"));
  EXPECT_THAT(log.After(first.last).lines, IsEmpty());
  log.Add(Line("c"));
  const RunLogPart next = log.After(first.last);
  EXPECT_THAT(Texts(next), ElementsAre("c"));
  EXPECT_EQ(next.lines[0].number, 3u);
  EXPECT_EQ(next.dropped, 0u);
  EXPECT_FALSE(next.more);
}

TEST(RunLog, Events_AreTheLastOfTheCoordinatorWhateverWorkersSay) {
  RunLog log;
  for (size_t i = 0; i < RunLog::kMostEvents + 1; ++i) log.Add(Line("event " + std::to_string(i)));
  for (size_t i = 0; i < RunLog::kMostLines; ++i) log.Add(Line("noise", 1, {0}));
  const RunLogPart events = log.Events();
  ASSERT_EQ(events.lines.size(), RunLog::kMostEvents);
  EXPECT_EQ(events.lines.front().entry.text, "event 1");
  EXPECT_EQ(events.lines.back().entry.text, "event 64");
  EXPECT_THAT(Texts(log.After(0)), ::testing::Each("noise"));
}

TEST(RunLog, RoutineEventsInARow_AreTheLastOfThem) {
  RunLog log;
  for (const char* text : {"begins", "saved 1", "saved 2", "lost", "saved 3", "saved 4"}) {
    RunLogLine line = Line(text);
    line.routine = line.entry.text.find("saved") == 0;
    log.Add(line);
  }
  EXPECT_THAT(Texts(log.Events()), ElementsAre("begins", "saved 2", "lost", "saved 4"));
  EXPECT_EQ(log.After(0).lines.size(), 6u);
}

TEST(RunLog, OfARank_HasItsProcessAndTheCoordinator) {
  RunLog log;
  log.Add(Line("of all"));
  log.Add(Line("of 0 and 1", 0, {0, 1}));
  log.Add(Line("of 2", 1, {2}));
  const RunLogPart part = log.After(0, 1);
  EXPECT_THAT(Texts(part), ElementsAre("of all", "of 0 and 1"));
  EXPECT_EQ(part.last, 3u) << "what was left out is not asked for again";
}

TEST(RunLog, ManyLines_LeaveTheLastAndSayHowManyAreGone) {
  RunLog log;
  for (size_t i = 0; i < RunLog::kMostLines + 5; ++i) log.Add(Line("x"));
  const RunLogPart part = log.After(2);
  EXPECT_EQ(part.lines.size(), RunLog::kMostLines);
  EXPECT_EQ(part.dropped, 3u);
  EXPECT_EQ(part.lines.front().number, 6u);
}

TEST(RunLog, LargeLines_AreBoundedTogether) {
  RunLog log;
  for (int i = 0; i < 100; ++i) log.Add(Line(std::string(RunLog::kMostBytes / 10, 'x')));
  size_t bytes = 0, lines = 0;
  uint64_t after = 0;
  while (true) {
    const RunLogPart part = log.After(after);
    for (const RunLogLine& line : part.lines) bytes += line.entry.text.size(), ++lines;
    after = part.last;
    if (!part.more) break;
  }
  EXPECT_EQ(lines, 10u) << "parts have all that is kept";
  EXPECT_LE(bytes, RunLog::kMostBytes);
}

TEST(RunLog, Text_IsALineOfTimeLevelAndWriter) {
  RunLogLine line = Line("it waits", 1);
  line.entry.severity = LogSeverity::kWarning;
  line.entry.unix_ns = 1'795'357'211'045'999'999;
  EXPECT_EQ(RunLogText(line), "2026-11-22T14:20:11.045Z warning process 1: it waits");
}

TEST(LogRate, ManyLinesAtOnce_AreRefusedAndCounted) {
  LogRate rate;
  int64_t now = 5'000'000'000;
  int admitted = 0;
  for (int i = 0; i < 100; ++i) admitted += rate.Admit(now) ? 1 : 0;
  EXPECT_EQ(admitted, LogRate::kBurst);
  now += 1'000'000'000;
  admitted = 0;
  for (int i = 0; i < 100; ++i) admitted += rate.Admit(now) ? 1 : 0;
  EXPECT_EQ(admitted, LogRate::kPerSecond);
  EXPECT_EQ(rate.TakeRefused(), 200 - LogRate::kBurst - LogRate::kPerSecond);
  EXPECT_EQ(rate.TakeRefused(), 0);
}

}  // namespace
}  // namespace weft::run_log_test
