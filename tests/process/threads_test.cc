// The programs where the machine gives them few threads or none.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::threads_test {
namespace {

using ::testing::HasSubstr;

// A user that nobody else is, since the limit counts all threads of a user; root has no limit.
constexpr char kUser[] = "54321";

std::string Program(const std::string& name) { return std::string(std::getenv("WEFT_BIN")) + "/" + name; }

class FewThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: the limit of threads for one program needs root";
    ASSERT_EQ(chmod(folder_.path().c_str(), 0777), 0);
    if (Command::Run(Limited(100, {Program("weft"), "--version"})).code != 0)
      GTEST_SKIP() << "NOT TESTED: setpriv or prlimit is not here, or other users may not run the programs";
  }
  // A command whose program may have so many threads, its first one included.
  static std::vector<std::string> Limited(int threads, const std::vector<std::string>& command) {
    const std::string limit = std::to_string(threads);
    std::vector<std::string> all = {"/usr/bin/env"};
    // LeakSanitizer would need one more thread, and its report a place where this user may write.
    if (const char* options = std::getenv("ASAN_OPTIONS"))
      all.push_back("ASAN_OPTIONS=" + std::string(options) + ":detect_leaks=0:log_path=stderr");
    all.insert(all.end(),
               {"prlimit", "--nproc=" + limit + ":" + limit, "setpriv", "--reuid", kUser, "--clear-groups"});
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  // True if it ended, by itself, with one sentence that says what is missing.
  static void ExpectClearEnd(const CommandResult& r, int threads) {
    EXPECT_FALSE(r.timed_out) << threads << " threads: " << r.err;
    EXPECT_EQ(r.signal, 0) << threads << " threads: " << r.err;
    EXPECT_EQ(r.code, 75) << threads << " threads: " << r.err;
    EXPECT_THAT(r.err, HasSubstr("no thread can be started")) << threads << " threads";
    EXPECT_THAT(r.err, HasSubstr("ulimit -u")) << threads << " threads";
  }

  TestFolder folder_;
};

constexpr int kSome[] = {1, 2, 3, 5, 8, 11, 14};

TEST_F(FewThreads, Coordinator_EndsWithASentence) {
  for (const int threads : kSome) {
    ExpectClearEnd(Command::Run(Limited(
                       threads, {Program("weft-coordinator"), "--listen", "unix:" + folder_ / "c.sock"})),
                   threads);
  }
}

TEST_F(FewThreads, Worker_EndsWithASentence) {
  for (const int threads : kSome) {
    ExpectClearEnd(Command::Run(Limited(
                       threads, {Program("weft-worker"), "--coordinator", "unix:" + folder_ / "none.sock"})),
                   threads);
  }
}

TEST_F(FewThreads, Client_EndsWithASentence) {
  const std::string file = WriteSmallRun(folder_);
  for (const int threads : {1, 2, 4, 8}) {
    ExpectClearEnd(Command::Run(Limited(
                       threads, {Program("weft"), "ls", "--coordinator", "unix:" + folder_ / "none.sock"})),
                   threads);
    ExpectClearEnd(Command::Run(Limited(threads, {Program("weft"), "train", file, "--out", folder_ / "out"})),
                   threads);
  }
  EXPECT_EQ(
      Command::Run(Limited(1, {Program("weft"), "simulate", "1f1b", "--stages", "4", "--microbatches", "8"}))
          .code,
      0);
}

// The processes of a training count together, so that any of them may get none.
TEST_F(FewThreads, Training_EndsWithASentenceOrWithItsResult) {
  const std::string file = WriteSmallRun(folder_);
  int ended = 0;
  for (const int threads : {14, 18, 24, 30, 40, 60}) {
    const std::string out = folder_ / ("out" + std::to_string(threads));
    const CommandResult r = Command::Run(
        Limited(threads, {Program("weft"), "train", file, "--out", out, "--processes", "2"}), 120);
    EXPECT_FALSE(r.timed_out) << threads << " threads: " << r.err;
    EXPECT_EQ(r.signal, 0) << threads << " threads: " << r.err;
    ended += r.code == 0 ? 1 : 0;
    EXPECT_TRUE(r.code == 0 || r.err.find("no thread can be started") != std::string::npos)
        << threads << " threads: " << r.err;
    EXPECT_EQ(r.err.find("SIGABRT"), std::string::npos) << threads << " threads: " << r.err;
  }
  EXPECT_GT(ended, 0);
}

}  // namespace
}  // namespace weft::threads_test
