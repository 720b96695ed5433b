// Golden transcripts of the protocol: each file of tests/golden/transcripts tells one story of the
// coordinator's core, workers' cores and the links between them, and what they do must be what stands there.
//
// docs/design/tests.md says how to write one. WEFT_UPDATE_GOLDEN=1 writes their outputs anew; read the diff.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden/transcript_driver.h"

namespace weft::transcript_golden_test {
namespace {

std::string Folder() {
  const char* source = std::getenv("WEFT_SOURCE");
  return absl::StrCat(source == nullptr ? "." : source, "/tests/golden/transcripts");
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(Folder(), error))
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the lines in which the texts differ, and some around them, as diff writes them.
std::string Difference(const std::string& expected, const std::string& actual) {
  const std::vector<std::string> a = absl::StrSplit(expected, '\n'), b = absl::StrSplit(actual, '\n');
  // Longest common part of what is behind a line of each.
  std::vector<std::vector<int>> common(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = a.size(); i-- > 0;)
    for (size_t j = b.size(); j-- > 0;)
      common[i][j] = a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
  std::vector<std::string> lines;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      lines.push_back(absl::StrCat(" ", a[i++]));
      ++j;
    } else if (j == b.size() || (i < a.size() && common[i + 1][j] >= common[i][j + 1])) {
      lines.push_back(absl::StrCat("-", a[i++]));
    } else {
      lines.push_back(absl::StrCat("+", b[j++]));
    }
  }
  constexpr size_t kAround = 4;
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto first = lines.begin() + static_cast<std::ptrdiff_t>(i > kAround ? i - kAround : 0);
    const auto end = lines.begin() + static_cast<std::ptrdiff_t>(std::min(lines.size(), i + kAround + 1));
    if (std::any_of(first, end, [](const std::string& line) { return line[0] != ' '; }))
      absl::StrAppend(&out, lines[i], "\n");
  }
  return out;
}

class TranscriptGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(TranscriptGolden, ItsCommands_LeadToWhatStandsThere) {
  const std::string path = absl::StrCat(Folder(), "/", GetParam(), ".txt");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  TranscriptDriver driver;
  const auto actual =
      RunTranscript(text.str(), [&](const TranscriptCommand& command) { return driver.Do(command); });
  ASSERT_TRUE(actual.ok()) << path << ": " << actual.status().message();
  if (std::getenv("WEFT_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << *actual;
  } else if (text.str() != *actual) {
    ADD_FAILURE() << path << " differs; WEFT_UPDATE_GOLDEN=1 writes it anew\n"
                  << Difference(text.str(), *actual);
  }
}

INSTANTIATE_TEST_SUITE_P(Stories, TranscriptGolden, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

TEST(Transcripts, Folder_HasStories) { EXPECT_GE(Names().size(), 15u) << Folder(); }

TEST(Transcripts, WrongOutput_IsReplacedAndAllElseStays) {
  const std::string text = "# A story.\n\nlist workers\n----\nnobody\n\n# The end.\n";
  TranscriptDriver driver;
  const auto actual = RunTranscript(text, [&](const TranscriptCommand& c) { return driver.Do(c); });
  ASSERT_TRUE(actual.ok()) << actual.status();
  EXPECT_EQ(*actual, "# A story.\n\nlist workers\n----\nok\n\n# The end.\n");
}

TEST(Transcripts, Difference_ShowsChangedLinesAndThoseAround) {
  EXPECT_EQ(Difference("a\nb\nc\nd\ne\nf\ng\n", "a\nb\nc\nd\ne\nf\nh\n"), " c\n d\n e\n f\n-g\n+h\n \n");
}

TEST(Transcripts, CommandThatCannotBeCarriedOut_SaysWhy) {
  TranscriptDriver driver;
  const auto says = [&](const char* line) { return driver.Do(*ParseTranscriptCommand(line)); };
  EXPECT_EQ(says("dance"), "error: no command dance\n");
  EXPECT_EQ(says("end w7"), "error: no worker w7\n");
  EXPECT_THAT(says("submit schedule=gpip stages=1"), ::testing::StartsWith("error: no schedule is called"));
}

TEST(Transcripts, CommandWithoutItsLine_IsRefusedWithTheNumber) {
  const auto actual = RunTranscript("settle\nlist runs\n\n", [](const TranscriptCommand&) { return "ok\n"; });
  ASSERT_FALSE(actual.ok());
  EXPECT_NE(actual.status().message().find("line 1"), std::string::npos) << actual.status();
}

}  // namespace
}  // namespace weft::transcript_golden_test
