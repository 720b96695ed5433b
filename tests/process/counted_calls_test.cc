// Each process of a training parses the run's specification once and makes its schedule once; everything else
// is handed the two as values. The programs are the real ones, with these two calls noted (counted_calls.cc).
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::counted_calls_test {
namespace {

using ::testing::Each;
using ::testing::Pair;
using ::testing::SizeIs;

// Calls of each function, by process.
struct Calls {
  std::map<std::string, int> parses, schedules;
};

class CountedCalls : public ::testing::Test {
 protected:
  CountedCalls() { setenv("WEFT_COUNTED_CALLS", Noted().c_str(), /*overwrite=*/1); }

  std::string Noted() const { return folder_ / "calls"; }
  static std::string Program(const std::string& name) { return absl::StrCat(WEFT_COUNTED_BIN, "/", name); }
  Calls Read() const {
    Calls calls;
    for (absl::string_view line : absl::StrSplit(ReadWholeFile(Noted()), '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
      ++(words.second == "parse" ? calls.parses : calls.schedules)[words.first];
    }
    return calls;
  }
  void Train(const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {Program("weft"), "train", WriteSmallRun(folder_), "--out",
                                      folder_ / "out"};
    words.insert(words.end(), flags.begin(), flags.end());
    const CommandResult trained = Command::Run(words, 120);
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  // Each of so many processes called each function once.
  void ExpectOnce(size_t processes) const {
    const Calls calls = Read();
    EXPECT_THAT(calls.parses, SizeIs(processes));
    EXPECT_THAT(calls.parses, Each(Pair(testing::_, 1)));
    EXPECT_THAT(calls.schedules, SizeIs(processes));
    EXPECT_THAT(calls.schedules, Each(Pair(testing::_, 1)));
  }

  const TestFolder folder_;
};

TEST_F(CountedCalls, TrainOnFourProcesses_EachParsesOnceAndMakesOneSchedule) {
  Train({"--processes", "4"});
  ExpectOnce(5);
}

TEST_F(CountedCalls, ResumedTrain_EachParsesOnceAndMakesOneSchedule) {
  Train({"--processes", "2", "--until", "1"});
  std::remove(Noted().c_str());
  Train({"--processes", "2", "--resume", folder_ / "out"});
  ExpectOnce(3);
}

TEST_F(CountedCalls, Reference_EachParsesOnceAndMakesOneSchedule) {
  Train({"--reference"});
  ExpectOnce(2);
}

TEST_F(CountedCalls, SubmittedRun_EachParsesOnceAndMakesOneSchedule) {
  const std::string address = "unix:" + (folder_ / "coordinator.sock");
  Command coordinator({Program("weft-coordinator"), "--listen", address, "--output-root", folder_ / "runs"});
  ASSERT_TRUE(coordinator.WaitFor("listening on", 60));
  Command first({Program("weft-worker"), "--coordinator", address});
  Command second({Program("weft-worker"), "--coordinator", address});
  const CommandResult submitted =
      Command::Run({Program("weft"), "submit", WriteSmallRun(folder_), "--processes", "2", "--out",
                    folder_ / "out", "--coordinator", address},
                   120);
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  // The coordinator writes the results, which need the schedule too, before it ends.
  coordinator.Signal(SIGTERM);
  EXPECT_EQ(coordinator.Wait(60).code, 0);
  ExpectOnce(4);
}

}  // namespace
}  // namespace weft::counted_calls_test
