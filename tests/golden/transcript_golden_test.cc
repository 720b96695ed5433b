// Golden transcripts of the protocol: each file of tests/golden/transcripts tells one story of the
// coordinator's core, workers' cores and the links between them, and what they do must be what stands there.
//
// docs/design/tests.md says how to write one. WEFT_UPDATE_GOLDEN=1 writes their outputs anew; read the diff.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden/transcript_driver.h"

namespace weft {
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
  } else {
    EXPECT_EQ(text.str(), *actual) << path << " differs; WEFT_UPDATE_GOLDEN=1 writes it anew";
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
}  // namespace weft
