#include "worker/shell/checkpoint/unnamed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace weft::unnamed_file_test {
namespace {

using ::testing::HasSubstr;

Tensor Of(std::vector<char>& bytes) {
  Tensor tensor;
  tensor.data = bytes.data();
  tensor.bytes = bytes.size();
  return tensor;
}

TEST(UnnamedFile, Copy_KeepsTheBytesAndLeavesNoName) {
  const std::string folder = ::testing::TempDir() + "unnamed_file";
  std::filesystem::create_directory(folder);
  std::vector<char> bytes(10'000);
  std::iota(bytes.begin(), bytes.end(), '\0');
  const std::vector<char> before = bytes;
  const absl::StatusOr<Tensor> copy = CopyToFile(Of(bytes), folder);
  ASSERT_TRUE(copy.ok()) << copy.status();
  std::fill(bytes.begin(), bytes.end(), '\0');
  ASSERT_EQ(copy->bytes, before.size());
  EXPECT_EQ(std::memcmp(copy->data, before.data(), before.size()), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(UnnamedFile, FolderThatIsNotThere_IsUnavailableAndNamesIt) {
  std::vector<char> bytes(8);
  const absl::Status status = CopyToFile(Of(bytes), "/none/at/all").status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/none/at/all"));
}

TEST(UnnamedFile, TensorWithoutBytes_IsCopied) {
  EXPECT_TRUE(CopyToFile(Tensor(), ::testing::TempDir()).ok());
}

}  // namespace
}  // namespace weft::unnamed_file_test
