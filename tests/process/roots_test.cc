// Daemons that open files of runs only beneath their roots, and users who name other files.
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::roots_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "the secret of another user";

// A coordinator and a worker whose root is `root`, and a secret beside it.
class Roots : public ::testing::Test {
 protected:
  Roots()
      : root_(fs::canonical(folder_ / "") / "root"),
        address_("unix:" + folder_ / "coordinator.sock"),
        secret_(folder_.Write("secret.txt", std::string(kSecret) + RandomLetters(5000))) {
    fs::create_directories(root_ / "data");
    WriteSmallRun(folder_);
    fs::copy_file(folder_ / "text.txt", root_ / "data" / "text.txt");
  }
  void SetUp() override {
    coordinator_.emplace(std::vector<std::string>{"weft-coordinator", "--listen", address_, "--roots",
                                                  root_.string(), "--output-root", folder_ / "runs"});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", 60));
    worker_.emplace(std::vector<std::string>{"weft-worker", "--coordinator", address_, "--roots",
                                             root_.string() + "," + folder_ / "runs"});
  }

  // Submits a run that reads the file, and waits for its end.
  CommandResult Submit(const std::string& text, std::vector<std::string> flags = {}) {
    const std::string file = WriteSmallRun(folder_, {{"data", "{text: {path: " + text + "}}"}});
    std::vector<std::string> command = {"weft", "submit",        file,    "--processes",
                                        "1",    "--coordinator", address_};
    command.insert(command.end(), flags.begin(), flags.end());
    return Command::Run(command);
  }
  std::string Beneath(const std::string& path) const { return (root_ / path).string(); }

  TestFolder folder_;
  const fs::path root_;
  const std::string address_, secret_;
  std::optional<Command> coordinator_, worker_;
};

TEST_F(Roots, RunWhoseFilesAreBeneath_IsTrained) {
  const CommandResult r = Submit(Beneath("data/text.txt"), {"--out", Beneath("out/a/run")});
  EXPECT_EQ(r.code, 0) << r.err;
  for (const char* file : {"summary.json", "steps.jsonl", "log.jsonl", "trace.json", "checkpoint"})
    EXPECT_TRUE(fs::exists(root_ / "out/a/run" / file)) << file;
  const CommandResult again = Submit(Beneath("data/../data/text.txt"));
  EXPECT_EQ(again.code, 0) << "into the folder of outputs: " << again.err;
}

TEST_F(Roots, RunThatReadsAnotherFile_FailsWithTheKeyAndThePath) {
  fs::create_symlink(secret_, root_ / "link.txt");
  fs::create_symlink("..", root_ / "up");
  for (const std::string& path :
       {secret_, Beneath("../secret.txt"), Beneath("link.txt"), Beneath("up/secret.txt")}) {
    const CommandResult r = Submit(path);
    EXPECT_NE(r.code, 0) << path;
    EXPECT_THAT(r.out + r.err, HasSubstr("data.text.path: cannot open"));
    EXPECT_THAT(r.out + r.err, HasSubstr("--roots"));
    EXPECT_THAT(r.out + r.err, Not(HasSubstr(kSecret)));
  }
}

TEST_F(Roots, OutputFolderElsewhere_IsRefusedAtSubmit) {
  fs::create_symlink("..", root_ / "up");
  for (const std::string& out : {folder_ / "elsewhere", Beneath("../elsewhere"), Beneath("up/elsewhere")}) {
    const CommandResult r = Submit(Beneath("data/text.txt"), {"--out", out});
    EXPECT_EQ(r.code, 77) << out << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr("--roots"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));
}

// A coordinator sends files of a run's folder to users, and the run's user can write there.
TEST_F(Roots, TraceThatBecameALink_IsNotShown) {
  const CommandResult run = Submit(Beneath("data/text.txt"), {"--out", Beneath("run")});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto trace = [this] {
    return Command::Run(
        {"weft", "trace", "1", "--coordinator", address_, "--perfetto", folder_ / "shown.json"});
  };
  fs::rename(root_ / "run" / "trace.json", root_ / "trace.json");
  fs::create_symlink("../trace.json", root_ / "run" / "trace.json");
  EXPECT_EQ(trace().code, 0) << "it is a trace, and beneath the root";
  fs::remove(folder_ / "shown.json");
  fs::rename(root_ / "trace.json", folder_ / "trace.json");
  fs::remove(root_ / "run" / "trace.json");
  fs::create_symlink("../../trace.json", root_ / "run" / "trace.json");
  const CommandResult refused = trace();
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("trace.json"));
  EXPECT_FALSE(fs::exists(folder_ / "shown.json"));
}

TEST(RootsOfADaemon, ThatAreNone_AreBadConfiguration) {
  TestFolder folder;
  for (const char* program : {"weft-coordinator", "weft-worker"}) {
    const std::string flag = std::string(program) == "weft-worker" ? "--coordinator" : "--listen";
    for (const std::string& root : {folder / "none", std::string("relative")}) {
      const CommandResult r = Command::Run({program, flag, "unix:" + folder / "c.sock", "--roots", root});
      EXPECT_EQ(r.code, 78) << program << ": " << r.err;
      EXPECT_THAT(r.err, HasSubstr("--roots: " + root));
    }
  }
}

}  // namespace
}  // namespace weft::roots_test
