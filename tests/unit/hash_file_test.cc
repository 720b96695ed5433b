#include "client/diff/hash_file.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/diff/folder_diff.h"
#include "coordinator/record/hash_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"
#include "tests/unit/small_run_spec.h"

namespace weft::hash_file_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

JobHashes SomeJob() {
  return {Job::Compute(3, 1, 5, JobKind::kBackward),
          2,
          1,
          std::nullopt,
          std::nullopt,
          {{HashedValue::kInputGradient, false, 0, 0, 1, 0xfedcba9876543210},
           {HashedValue::kGradient, false, 0, 1, 4, 1},
           {HashedValue::kInputGradient, true, 2, 0, 1, 7},
           {HashedValue::kWeights, true, 3, 2, 4, 0}}};
}

TEST(HashLine, ParseHashLine_OfEveryKindOfJob_GivesItBack) {
  JobHashes loss{Job::Compute(0, 3, 0, JobKind::kForward), 3, 0, 0.1, std::nullopt, {}};
  JobHashes norm{Job::Reduce(7, 0, 2), 0,      0,
                 std::nullopt,         1e-300, {{HashedValue::kGradientSum, false, 0, 2, 3, 9}}};
  JobHashes update{Job::Update(7, 0, 2), -1, -1, std::nullopt, std::nullopt, {{HashedValue::kWeights}}};
  for (const JobHashes& job : {SomeJob(), loss, norm, update}) {
    const auto back = ParseHashLine(HashLine(job));
    ASSERT_TRUE(back.ok()) << HashLine(job);
    EXPECT_EQ(*back, job) << HashLine(job);
  }
}

TEST(HashLine, ParseHashLine_OfALossThatIsNoNumber_KeepsItsBits) {
  JobHashes job{Job::Compute(0, 3, 0, JobKind::kForward), 3, 0, std::nan("1"), std::nullopt, {}};
  const auto back = ParseHashLine(HashLine(job));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(std::isnan(*back->loss));
}

TEST(HashLine, ParseHashLine_OfOtherText_IsRefused) {
  for (const std::string text : {"", "{", "[]", "{\"step\": 1}", "{\"kind\": \"forward\", \"step\": \"x\"}"})
    EXPECT_FALSE(ParseHashLine(text).ok()) << text;
  std::string line = HashLine(SomeJob());
  line.replace(line.find("fedc"), 4, "zzzz");
  EXPECT_FALSE(ParseHashLine(line).ok());
}

// A folder of its own for each test, removed at the end.
class HashLogTest : public ::testing::Test {
 protected:
  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
};

RunSpec Recorded(int first_step) {
  RunSpec run = *ParseRunSpec(GptRun());
  run.record_hashes = true;
  if (first_step > 0) run.resume = {"/some/checkpoint", first_step};
  return run;
}

TEST_F(HashLogTest, ReadHashes_OfARunThatWentOn_HasEachStepAsItWasMadeLast) {
  JobHashes job{
      Job::Update(0, 0, 0), 0, 0, std::nullopt, std::nullopt, {{HashedValue::kWeights, false, 0, 0, 1, 10}}};
  {
    HashLog log(folder_, Recorded(0));
    for (int step = 0; step < 3; ++step) {
      job.job.step = step;
      ASSERT_TRUE(log.Append(std::vector<JobHashes>{job}).ok());
    }
  }
  std::ofstream(absl::StrCat(folder_, "/hashes.jsonl"), std::ios::app) << "{\"step\":2,\"sta";  // a crash
  {
    HashLog log(folder_, Recorded(1));
    job.job.step = 1;
    job.hashes[0].hash = 11;
    ASSERT_TRUE(log.Append(std::vector<JobHashes>{job}).ok());
  }
  const auto file = ReadHashes(folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->run.first_step(), 1);
  EXPECT_EQ(file->damaged_lines, 1u);
  EXPECT_EQ(file->hashes.size(), 2u) << "the former step 2 is gone";
  EXPECT_EQ(file->hashes.Find(Job::Update(0, 0, 0))->hashes[0].hash, 10u);
  EXPECT_EQ(file->hashes.Find(Job::Update(1, 0, 0))->hashes[0].hash, 11u);
}

TEST_F(HashLogTest, ReadHashes_OfARunWhoseCoordinatorWasStartedAgain_HasTheJobsOfBefore) {
  JobHashes job{
      Job::Update(0, 0, 0), 0, 0, std::nullopt, std::nullopt, {{HashedValue::kWeights, false, 0, 0, 1, 10}}};
  for (int life = 0; life < 3; ++life) {
    HashLog log(folder_, Recorded(0), /*same_run=*/life > 0);
    for (int step = 2 * life; step < 2 * life + 3; ++step) {
      job.job.step = step;
      ASSERT_TRUE(log.Append(std::vector<JobHashes>{job}).ok());
    }
  }
  const auto file = ReadHashes(folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->hashes.size(), 7u) << "each job once";
}

TEST_F(HashLogTest, Append_InARunWithoutHashes_LeavesNoFile) {
  RunSpec run = Recorded(0);
  run.record_hashes = false;
  HashLog log(folder_, run);
  EXPECT_TRUE(log.Append(std::vector<JobHashes>()).ok());
  EXPECT_TRUE(absl::IsNotFound(ReadHashes(folder_).status()));
}

TEST(HashFile, ParseHashes_WithoutARun_IsRefused) {
  std::istringstream lines(HashLine(SomeJob()) + "\n");
  EXPECT_THAT(std::string(ParseHashes(lines).status().message()), HasSubstr("names no run"));
}

TEST(FolderDiff, DiffTraces_OneCheckpointDiffers_NamesTheEqualOneBeforeAndTheLoss) {
  RunTraces a;
  a.losses = {{0, 2.0}, {1, 1.5}, {2, 1.25}};
  a.checkpoints = {{1, {{"stage00", "x"}, {"stage01", "y"}}}, {2, {{"stage00", "x"}, {"stage01", "y"}}}};
  RunTraces b = a;
  EXPECT_TRUE(DiffTraces(a, b).equal());
  EXPECT_THAT(FolderDiffText(DiffTraces(a, b), {"a", "b"}),
              AllOf(HasSubstr("equal: the losses of 3 steps"), Not(HasSubstr("--record hashes"))));
  b.losses[2] = std::nullopt;
  b.checkpoints[2]["stage01"] = "z";
  const FolderDiff diff = DiffTraces(a, b);
  EXPECT_EQ(diff.differing_loss, 2);
  EXPECT_EQ(diff.equal_checkpoint, 1);
  EXPECT_EQ(diff.differing_checkpoint, 2);
  EXPECT_EQ(diff.differing_files, std::vector<std::string>{"stage01"});
  EXPECT_THAT(FolderDiffText(diff, {"a", "b"}), HasSubstr("--record hashes"));
}

}  // namespace
}  // namespace weft::hash_file_test
