#include "base/durable_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/test_folder.h"
#include "worker/shell/checkpoint/safetensors.h"

namespace weft::durable_file_test {
namespace {

namespace fs = std::filesystem;

class DurableFiles : public ::testing::Test {
 protected:
  std::string ContentOf(const std::string& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t FilesInFolder() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
};

// So large that the disk begins while it is filled.
TEST_F(DurableFiles, LargeFile_HoldsWhatWasAppendedWithItsBeginReplaced) {
  std::string whole(40 << 20, '\0');
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<char>(i * 31 + i / 4099);
  DurableFile file(folder_ + "/large");
  for (size_t at = 0; at < whole.size(); at += 3'000'001)
    file.Append(whole.data() + at, std::min<size_t>(3'000'001, whole.size() - at));
  file.ReplaceBegin("begin", 5);
  whole.replace(0, 5, "begin");
  ASSERT_TRUE(file.Finish().ok());
  EXPECT_TRUE(ContentOf(folder_ + "/large") == whole);
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(DurableFiles, UntilItIsFinished_TheFormerContentStays) {
  for (const bool finish : {false, true}) {
    std::ofstream(folder_ + "/file") << "former";
    {
      DurableFile file(folder_ + "/file");
      const std::string content(20 << 20, 'x');
      file.Append(content.data(), content.size());
      EXPECT_EQ(ContentOf(folder_ + "/file"), "former");
      if (finish) {
        EXPECT_TRUE(file.Finish().ok());
      }
    }
    EXPECT_EQ(ContentOf(folder_ + "/file").size(), finish ? 20u << 20 : 6u);
    EXPECT_EQ(FilesInFolder(), 1u) << "nothing else is left";
  }
}

TEST_F(DurableFiles, FolderThatIsNotThere_IsNamed) {
  DurableFile file(folder_ + "/none/file");
  file.Append("x", 1);
  file.ReplaceBegin("y", 1);
  const absl::Status status = file.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(folder_ + "/none/file"));
}

// The folder goes away, as the disk of a removed run does.
TEST_F(DurableFiles, WriteThatFails_IsReportedAtTheEnd) {
  fs::create_directories(folder_ + "/in");
  DurableFile file(folder_ + "/in/file");
  file.Append("x", 1);
  fs::remove_all(folder_ + "/in");
  const absl::Status status = file.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(fs::exists(folder_ + "/in"));
}

TEST_F(DurableFiles, FileToReplace_IsNewOrRegularOrWhereALinkLeads) {
  fs::create_directories(folder_ + "/in");
  std::ofstream(folder_ + "/in/file") << "former";
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  fs::create_symlink("in/file", folder_ + "/link");
  fs::create_symlink("pipe", folder_ + "/to_pipe");
  fs::create_symlink("none", folder_ + "/to_none");
  EXPECT_EQ(*ReplaceableFile(folder_ + "/new"), folder_ + "/new");
  EXPECT_EQ(*ReplaceableFile(folder_ + "/none/new"), folder_ + "/none/new");
  EXPECT_EQ(*ReplaceableFile(folder_ + "/in/file"), folder_ + "/in/file");
  EXPECT_EQ(*ReplaceableFile(folder_ + "/link"), fs::canonical(folder_ + "/in/file").string());
  for (const char* const name : {"in", "pipe", "to_pipe", "to_none"}) {
    const absl::Status refused = ReplaceableFile(folder_ + "/" + name).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(folder_ + "/" + name + " is a "));
  }
}

TEST(Checksum, IsTheCrc32OfZipAndGzip) {
  EXPECT_EQ(ChecksumOf("123456789"), "cbf43926");
  EXPECT_EQ(ChecksumOf(""), "00000000");
}

}  // namespace
}  // namespace weft::durable_file_test
