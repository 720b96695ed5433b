// The main of every program of tests: as GoogleTest's own, and a program of many files can run the tests of
// some.
//
//   PROGRAM [GoogleTest's flags]             all tests
//   PROGRAM FILE.cc .. [GoogleTest's flags]  the tests that these files define
//
// With --gtest_filter it runs the tests of the filter, whatever the files: a death test starts its program
// again with one.
//
// CTest has an entry for each file, so that a failure says where, and the files share one program, so that
// the compiler reads their headers once (docs/measurements/build_time.md).

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::testing {
namespace {

std::string FileOf(const ::testing::TestInfo& test) {
  return std::filesystem::path(test.file()).filename().string();
}

// Returns GoogleTest's filter for the tests of `files`, and removes from `files` those that have tests.
std::string FilterOfFiles(std::set<std::string>& files) {
  std::set<std::string> found;
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (files.count(FileOf(test)) == 0) continue;
      found.insert(FileOf(test));
      absl::StrAppend(&filter, suite.name(), ".", test.name(), ":");
    }
  }
  for (const std::string& file : found) files.erase(file);
  return filter;
}

int RunTests(int argc, char** argv) {
  std::set<std::string> files(argv + 1, argv + argc);
  if (files.empty() || GTEST_FLAG_GET(filter) != "*") return RUN_ALL_TESTS();
  GTEST_FLAG_SET(filter, FilterOfFiles(files));
  for (const std::string& file : files)
    std::fprintf(stderr, "no test of this program is in %s\n", file.c_str());
  return files.empty() ? RUN_ALL_TESTS() : 2;
}

}  // namespace
}  // namespace weft::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return weft::testing::RunTests(argc, argv);
}
