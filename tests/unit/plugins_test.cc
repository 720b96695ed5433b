// Tests the loading of libraries of operations, with the two versions of tests/exported/plugin.
#include "worker/shell/torch/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/certificates/secret_text.h"
#include "worker/shell/compute/plugin_permission.h"

namespace weft::plugins_test {
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

// Writes a program that warns, and prints what it has as Python does that is asked for it; returns its path.
std::string PythonThatHas(const std::string& name, const std::string& library, const std::string& torch) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::ofstream(path) << "#!/bin/sh\necho 'a warning' >&2\ncat <<END\n\t/usr/bin/" << name << "\t" << library
                      << "\t" << torch << "\nEND\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// tests/exported/plugins.py runs Python, where there is one with PyTorch.
TEST(Plugins, PythonThatCannotRunHere_IsRefusedWithWhatToDo) {
  const std::string source = "import torch\n", path = absl::StrCat(testing::TempDir(), "/operations.py");
  std::ofstream(path) << source;
  const auto expect = [&](const std::string& python, const std::string& words) {
    AllowPlugins({/*any=*/true, {}, python});
    ExpectRefused({path, Sha256Of(source)}, absl::StatusCode::kFailedPrecondition, words);
  };
  expect("/no/python", "operations.py: cannot run: /no/python: ");
  expect(PythonThatHas("bare", "/usr/lib/libpython3.so", ""),
         absl::StrCat("needs a Python with PyTorch ", TORCH_VERSION, ", and /usr/bin/bare has none"));
  expect(PythonThatHas("old", "/usr/lib/libpython3.so", "1.13.1+cpu"), "/usr/bin/old has 1.13.1;");
  expect(PythonThatHas("static", "", absl::StrCat(TORCH_VERSION, "+cpu")),
         "needs the library of /usr/bin/static");
  expect(PythonThatHas("broken", path, TORCH_VERSION), absl::StrCat(path, " cannot be used: "));
  EXPECT_TRUE(LoadPlugins({}).ok());
}

}  // namespace
}  // namespace weft::plugins_test
