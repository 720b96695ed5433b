#include "coordinator/record/log_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::log_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

RunLogLine Line(uint64_t number, const std::string& text) {
  return {3, number, 1, "process 1 (w)", {0, 2}, {LogSeverity::kWarning, 1'795'357'211'045'000'000, text}};
}

class LogFileTest : public ::testing::Test {
 protected:
  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(LogFileTest, WrittenLines_AreReadAsTheyWere) {
  RunLogLine of_coordinator = {3, 1, -1, "coordinator", {}, {LogSeverity::kInfo, 5, "\"run\" 3\\"}};
  LogFile file(folder_, /*goes_on=*/false);
  ASSERT_TRUE(file.Append({of_coordinator, Line(2, "slow")}).ok());
  const auto lines = ReadLogFile(folder_);
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_THAT(*lines, ElementsAre(of_coordinator, Line(2, "slow")));
  EXPECT_EQ(RunLogJson(Line(2, "slow")),
            R"_({"time":"2026-11-22T14:20:11.045Z","unix_ns":1795357211045000000,"level":"warning","run":3,)_"
            R"_("number":2,"writer":"process 1 (w)","process":1,"ranks":[0,2],"text":"slow"})_");
}

TEST_F(LogFileTest, RunThatGoesOn_KeepsItsLinesAndANewOneDoesNot) {
  ASSERT_TRUE(LogFile(folder_, false).Append({Line(1, "a")}).ok());
  ASSERT_TRUE(LogFile(folder_, true).Append({Line(2, "b")}).ok());
  EXPECT_THAT(*ReadLogFile(folder_), SizeIs(2));
  LogFile fresh(folder_, false);
  EXPECT_THAT(*ReadLogFile(folder_), SizeIs(0));
}

TEST_F(LogFileTest, LongLog_IsBoundedAndKeepsTheNewestLines) {
  constexpr int64_t kMost = 4000;
  LogFile file(folder_, false, kMost);
  for (uint64_t i = 1; i <= 200; ++i) ASSERT_TRUE(file.Append({Line(i, "some line of a log")}).ok());
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_LE(bytes, 2 * kMost);
  const auto lines = ReadLogFile(folder_);
  ASSERT_TRUE(lines.ok());
  EXPECT_GT(lines->size(), 20u);
  for (size_t i = 0; i < lines->size(); ++i) EXPECT_EQ((*lines)[i].number, 200 - lines->size() + 1 + i);
}

TEST_F(LogFileTest, HalfALineOfACrash_IsLeftOut) {
  ASSERT_TRUE(LogFile(folder_, false).Append({Line(1, "a")}).ok());
  std::ofstream(folder_ + "/log.jsonl", std::ios::app) << "{\"time\":\"20";
  EXPECT_THAT(*ReadLogFile(folder_), SizeIs(1));
}

TEST_F(LogFileTest, FolderThatIsGone_IsSaidOnce) {
  LogFile file(folder_ + "/gone", false);
  EXPECT_TRUE(absl::IsUnavailable(file.Append({Line(1, "a")})));
  EXPECT_TRUE(file.Append({Line(2, "b")}).ok());
  EXPECT_TRUE(absl::IsNotFound(ReadLogFile(folder_ + "/gone").status()));
}

}  // namespace
}  // namespace weft::log_file_test
