#include "base/run_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/durable_file.h"
#include "tests/test_folder.h"

namespace weft::run_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Makes `root` with `inside.txt` and, beside it, `outside.txt`, and confines the process to the root.
class RunFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ / "sub");
    Write(root_ / "inside.txt", "inside");
    Write(folder_ / "outside.txt", "outside");
    ASSERT_TRUE(ConfineRunFiles({root_.string()}).ok());
  }
  void TearDown() override { ASSERT_TRUE(ConfineRunFiles({}).ok()); }

  static void Write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  // Returns the content of a file as the process may open it; "" with errno where it may not.
  static std::string Content(const std::string& path) {
    std::ifstream file = RunFileToRead(path);
    std::string text;
    std::getline(file, text);
    return text;
  }
  // Expects that a file of the path is neither read nor made nor written.
  static void ExpectOutside(const std::string& path) {
    SCOPED_TRACE(path);
    EXPECT_EQ(OpenRunFile(path, O_RDONLY), -1);
    EXPECT_EQ(errno, EXDEV);
    EXPECT_EQ(OpenRunFile(path, O_WRONLY | O_CREAT, 0644), -1);
    EXPECT_EQ(errno, EXDEV);
    EXPECT_EQ(Content(path), "");
    EXPECT_TRUE(absl::IsPermissionDenied(CheckRunPath(path)));
    EXPECT_FALSE(SyncToDisk(path).ok());
  }

  const TestFolder temporary_;
  const fs::path folder_ = fs::canonical(temporary_.path()), root_ = folder_ / "root";
};

TEST_F(RunFiles, PathBeneathTheRoot_IsOpenedHoweverItIsWritten) {
  const std::string root = root_.string();
  for (const std::string& path : {root + "/inside.txt", root + "//inside.txt", root + "/./inside.txt",
                                  root + "/sub/../inside.txt", root + "/sub/.././sub/../inside.txt"}) {
    EXPECT_EQ(Content(path), "inside") << path;
    EXPECT_TRUE(CheckRunPath(path).ok()) << path;
  }
  EXPECT_TRUE(CheckRunPath(root).ok());
  EXPECT_TRUE(CheckRunPath(root + "/").ok());
}

TEST_F(RunFiles, PathThatLeadsOut_IsRefused) {
  const std::string root = root_.string();
  for (const std::string& path :
       {std::string("/etc/passwd"), std::string("/"), (folder_ / "outside.txt").string(),
        root + "/../outside.txt", root + "//../outside.txt", root + "/./../outside.txt",
        root + "/sub/../../outside.txt", root + "/..", root + "/../root2/x", root + "x/inside.txt",
        std::string("inside.txt"), std::string("../outside.txt"), std::string()}) {
    ExpectOutside(path);
  }
}

// Such forms lead out of a root only where something decodes them; nothing does.
TEST_F(RunFiles, EncodedDots_AreNamesLikeOthers) {
  for (const char* name : {"/..\\outside.txt", "/%2e%2e/outside.txt", "/%2e%2e%2foutside.txt", "/.%00./x"}) {
    EXPECT_EQ(OpenRunFile(root_.string() + name, O_RDONLY), -1);
    EXPECT_EQ(errno, ENOENT) << name;
  }
}

TEST_F(RunFiles, LinksThatLeadOut_AreRefused) {
  fs::create_symlink("/etc/passwd", root_ / "absolute");
  fs::create_symlink("../outside.txt", root_ / "relative");
  fs::create_symlink("..", root_ / "up");
  fs::create_symlink("/", root_ / "everything");
  fs::create_symlink("../not/there", root_ / "dangling");
  fs::create_symlink("relative", root_ / "chain");
  fs::create_symlink(root_ / "inside.txt", root_ / "absolute_beneath");
  fs::create_symlink("/proc/self/root/etc/passwd", root_ / "magic");
  for (const char* path : {"absolute", "relative", "up/outside.txt", "everything/etc/passwd", "dangling",
                           "chain", "absolute_beneath", "magic", "sub/../up/root/../outside.txt"}) {
    ExpectOutside((root_ / path).string());
  }
  EXPECT_EQ(Content((folder_ / "outside.txt").string()), "");
}

TEST_F(RunFiles, RelativeLinkThatStaysBeneath_IsFollowed) {
  fs::create_symlink("../inside.txt", root_ / "sub" / "link");
  EXPECT_EQ(Content((root_ / "sub" / "link").string()), "inside");
}

TEST_F(RunFiles, PathThatIsMissing_IsAllowedWhereItWouldBeMadeBeneath) {
  EXPECT_TRUE(CheckRunPath((root_ / "new" / "run" / "out").string()).ok());
  for (const char* path : {"new/../../out", "new/..", "new/../x"})
    EXPECT_TRUE(absl::IsPermissionDenied(CheckRunPath((root_ / path).string()))) << path;
}

TEST_F(RunFiles, Refusal_NamesThePathAndTheRoots) {
  const std::string message(CheckRunPath("/etc/passwd").message());
  EXPECT_THAT(message, HasSubstr("/etc/passwd"));
  EXPECT_THAT(message, HasSubstr(root_.string()));
  EXPECT_THAT(message, HasSubstr("--roots"));
}

TEST_F(RunFiles, DurableFile_IsWrittenBeneathAlone) {
  EXPECT_TRUE(WriteWholeFile((root_ / "sub" / "new.txt").string(), "new").ok());
  EXPECT_EQ(Content((root_ / "sub" / "new.txt").string()), "new");
  fs::create_symlink("..", root_ / "up");
  const absl::Status refused = WriteWholeFile((root_ / "up" / "new.txt").string(), "new");
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--roots"));
  EXPECT_FALSE(fs::exists(folder_ / "new.txt"));
}

TEST_F(RunFiles, RootBehindALink_IsKnownByBothNames) {
  fs::create_symlink("root", folder_ / "link");
  ASSERT_TRUE(ConfineRunFiles({(folder_ / "link").string() + "/"}).ok());
  EXPECT_EQ(Content((folder_ / "link" / "inside.txt").string()), "inside");
  EXPECT_EQ(Content((root_ / "inside.txt").string()), "inside");
  ExpectOutside((folder_ / "outside.txt").string());
}

TEST_F(RunFiles, SeveralRoots_EachIsOne) {
  fs::create_directory(folder_ / "other");
  Write(folder_ / "other" / "more.txt", "more");
  ASSERT_TRUE(ConfineRunFiles({root_.string(), (folder_ / "other").string()}).ok());
  EXPECT_EQ(Content((root_ / "inside.txt").string()), "inside");
  EXPECT_EQ(Content((folder_ / "other" / "more.txt").string()), "more");
  ExpectOutside((root_ / ".." / "other" / "more.txt").string());
}

TEST_F(RunFiles, RootThatIsNone_ChangesNothing) {
  for (const std::string& root : {(folder_ / "none").string(), (folder_ / "outside.txt").string(),
                                  std::string("relative"), std::string()}) {
    const absl::Status status = ConfineRunFiles({root});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << root;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--roots"));
  }
  ExpectOutside((folder_ / "outside.txt").string());
}

TEST_F(RunFiles, ProcessWithoutRoots_OpensAnyPath) {
  ASSERT_TRUE(ConfineRunFiles({}).ok());
  EXPECT_EQ(Content((folder_ / "outside.txt").string()), "outside");
  EXPECT_TRUE(CheckRunPath("/etc/passwd").ok());
}

TEST_F(RunFiles, Pipe_IsNotWaitedFor) {
  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(Content((root_ / "pipe").string()), "");
}

// A check before the use would let some of these opens through.
TEST_F(RunFiles, FolderThatBecomesALinkMeanwhile_NeverLeadsOut) {
  Write(root_ / "sub" / "file.txt", "inside");
  fs::create_directory(folder_ / "bait");
  Write(folder_ / "bait" / "file.txt", "outside");
  fs::create_symlink("../bait", root_ / "link");
  std::atomic<bool> stop{false};
  std::thread swapping([&] {
    while (!stop) {
      renameat2(AT_FDCWD, (root_ / "sub").c_str(), AT_FDCWD, (root_ / "link").c_str(), RENAME_EXCHANGE);
    }
  });
  int inside = 0, refused = 0;
  for (int i = 0; i < 3000 || ((inside == 0 || refused == 0) && i < 3'000'000); ++i) {
    const std::string content = Content((root_ / "sub" / "file.txt").string());
    ASSERT_NE(content, "outside");
    content.empty() ? ++refused : ++inside;
  }
  stop = true;
  swapping.join();
  EXPECT_GT(inside, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace weft::run_files_test
