// Tests the loading of libraries of operations, with the two versions of tests/exported/plugin.
#include "worker/shell/torch/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/certificates/secret_text.h"
#include "worker/shell/compute/plugin_permission.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr char kOperation[] = "weft_test::scaled_tanh";

PluginSpec Version(int number) {
  const std::string path = absl::StrCat(WEFT_TEST_PLUGINS, "/", number, "/libweft_test_operations.so");
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return {path, Sha256Of(bytes)};
}

void ExpectRefused(const PluginSpec& plugin, absl::StatusCode code, const std::string& words) {
  const absl::Status loaded = LoadPlugins({plugin});
  EXPECT_EQ(loaded.code(), code) << loaded;
  EXPECT_THAT(std::string(loaded.message()), HasSubstr(words));
}

// The process keeps what it loads, so the cases come one after the other.
TEST(Plugins, Library_IsLoadedIfItIsAllowedAndHasItsHash) {
  const PluginSpec first = Version(1), second = Version(2);
  ExpectRefused(first, absl::StatusCode::kPermissionDenied,
                absl::StrCat("start it with --plugins ", first.sha256));
  AllowPlugins({/*any=*/false, {second.sha256}});
  ExpectRefused(first, absl::StatusCode::kPermissionDenied, absl::StrCat("does not allow ", first.library));
  AllowPlugins({/*any=*/true, {}});
  ExpectRefused({first.library, second.sha256}, absl::StatusCode::kInvalidArgument,
                absl::StrCat("has the SHA-256 ", first.sha256, ", and the run names ", second.sha256));
  ExpectRefused({WEFT_TEST_PLUGINS, first.sha256}, absl::StatusCode::kInvalidArgument, "is no file");
  EXPECT_FALSE(IsOperationOfPlugin(kOperation, "")) << "nothing refused is loaded";

  AllowPlugins({/*any=*/false, {first.sha256, second.sha256}});
  ASSERT_TRUE(LoadPlugins({first}).ok()) << LoadPlugins({first});
  EXPECT_TRUE(IsOperationOfPlugin(kOperation, ""));
  EXPECT_FALSE(IsOperationOfPlugin("aten::linear", ""));
  EXPECT_FALSE(IsOperationOfPlugin("prim::device", "")) << "LibTorch has it itself";
  EXPECT_TRUE(LoadPlugins({first}).ok()) << "again";
  ExpectRefused(second, absl::StatusCode::kFailedPrecondition,
                "cannot load another one; start the worker again");
}

}  // namespace
}  // namespace weft
