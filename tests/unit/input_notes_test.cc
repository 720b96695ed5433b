#include "worker/shell/data/input_notes.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::input_notes_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kRun[] = "0123456789abcdef", kOther[] = "fedcba9876543210";

class InputNotes : public ::testing::Test {
 protected:
  InputNotes() { fs::create_directory(out_); }

  absl::Status Check(const std::string& run = kRun) const { return CheckInputs(out_, run, {file_, other_}); }
  void ExpectRefused(const std::string& why) const {
    const absl::Status status = Check();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(file_ + " is not the file with which the run began: " + why),
                      HasSubstr("put that file back and resume the run from a checkpoint")));
  }

  const TestFolder folder_;
  const std::string out_ = folder_ / "out", other_ = folder_ / "other";
  const std::string file_ = folder_.Write("data", "to be or not to be");
};

TEST_F(InputNotes, FileThatIsTheSame_IsTakenByEachAttempt) {
  ASSERT_TRUE(Check().ok());
  fs::last_write_time(file_, fs::last_write_time(file_) + std::chrono::hours(1));
  EXPECT_TRUE(Check().ok()) << "a copy on another machine has another time";
}

TEST_F(InputNotes, FileOfAnotherLength_IsRefusedInALaterAttempt) {
  ASSERT_TRUE(Check().ok());
  folder_.Write("data", "to be");
  ExpectRefused("it has 5 bytes, and that had 18");
  ExpectRefused("it has 5 bytes, and that had 18");
}

TEST_F(InputNotes, FileOfOtherBytes_IsRefusedInALaterAttempt) {
  ASSERT_TRUE(Check().ok());
  folder_.Write("data", "to be or not to me");
  ExpectRefused("its 18 bytes are others");
}

// Blocks all over it are compared, and its last byte.
TEST_F(InputNotes, LongFileOfOtherBytes_IsRefusedInALaterAttempt) {
  const std::string text(10 << 20, 'a');
  folder_.Write("data", text);
  ASSERT_TRUE(Check().ok());
  folder_.Write("data", text.substr(1) + "b");
  ExpectRefused("its 10485760 bytes are others");
  folder_.Write("data", text.substr(0, 5 << 20) + std::string(5 << 20, 'b'));
  ExpectRefused("its 10485760 bytes are others");
  folder_.Write("data", text);
  EXPECT_TRUE(Check().ok());
}

// What a run with --resume in the folder of a former one finds.
TEST_F(InputNotes, FileOfAnotherRun_IsNotCompared) {
  ASSERT_TRUE(Check().ok());
  folder_.Write("data", "to be");
  EXPECT_TRUE(Check(kOther).ok());
  EXPECT_TRUE(Check(kOther).ok());
}

TEST_F(InputNotes, FileThatOnlyALaterProcessHas_IsComparedFromThenOn) {
  ASSERT_TRUE(Check().ok());
  folder_.Write("other", "labels");
  ASSERT_TRUE(Check().ok());
  fs::remove(file_);
  EXPECT_TRUE(Check().ok()) << "its reader says that it is gone";
  folder_.Write("other", "LABELS");
  EXPECT_TRUE(absl::IsFailedPrecondition(Check()));
}

TEST_F(InputNotes, LinesThatAreNotWhole_AreNoNotes) {
  std::ofstream(out_ + "/inputs.jsonl")
      << "{\"run_id\": \"" << kRun << "\", \"path\": \"" << file_
      << "\", \"bytes\": \"5\", \"hash\": \"\"}\n[]\n{\"run_id\": 1}\n{\"pa\n";
  EXPECT_TRUE(Check().ok());
  folder_.Write("data", "to be");
  ExpectRefused("it has 5 bytes, and that had 18");
}

}  // namespace
}  // namespace weft::input_notes_test
