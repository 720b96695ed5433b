// Trainings whose loss or gradient is infinite or not a number, with the real programs: they end with step,
// stage and micro-batch, skip a step together, or go on, as the run file says, under schedules and under the
// plain loop alike.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/trained_run.h"

namespace weft::non_finite_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Black images but for number kBright. A first step with a huge weight decay makes all weights large; the
// training that is tested goes on from there. Products of these with the bright image overflow; those with
// black ones do not.
constexpr int kSide = 4, kCount = 64, kBright = 46, kBrightStep = 5;

class NonFinite : public ::testing::Test {
 protected:
  NonFinite() {
    std::string images = BigEndian(0x803) + BigEndian(kCount) + BigEndian(kSide) + BigEndian(kSide);
    std::string labels = BigEndian(0x801) + BigEndian(kCount);
    for (int i = 0; i < kCount; ++i) {
      images += std::string(kSide * kSide, i == kBright ? '\xff' : '\0');
      labels += static_cast<char>(i % 3);
    }
    folder_.Write("images.idx", images);
    folder_.Write("labels.idx", labels);
  }

  // The first step, by the plain loop of the schedule's rule.
  void Grow(const std::string& schedule) {
    const TrainedRun first =
        TrainWith("lr: 1000, weight_decay: 1000", "", schedule, {"--reference", "--until=1"});
    ASSERT_EQ(first.result.code, 0) << first.result.err;
    std::filesystem::remove_all(folder_ / "grown");
    std::filesystem::copy(folder_ / "out/checkpoint", folder_ / "grown",
                          std::filesystem::copy_options::recursive);
  }

  // Goes on from there.
  TrainedRun Train(const std::string& choice, const std::string& schedule, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--resume", folder_ / "grown"});
    return TrainWith("lr: 1.0e-30", choice, schedule, flags);
  }

  TrainedRun TrainWith(const std::string& optimizer, const std::string& choice, const std::string& schedule,
                       const std::vector<std::string>& flags) {
    return TrainSmallRun(
        folder_,
        {{"model", "{mlp: {layers: 7, width: 8, inputs: 16, classes: 3}}"},
         {"data", "{idx: {images: images.idx, labels: labels.idx}}"},
         {"train", absl::StrCat("{steps: 8, batch: 8, microbatches: 4, seed: 1, optimizer: "
                                "{sgd: {momentum: 0.9, ",
                                optimizer, "}}", choice.empty() ? "" : ", non_finite: ", choice, "}")},
         {"schedule", schedule}},
        flags);
  }

  TestFolder folder_;
};

TEST_F(NonFinite, ByDefault_TheRunEndsAndNamesStepStageAndMicrobatch) {
  Grow("1f1b");
  for (const std::string flag : {"--reference", "--processes=2"}) {
    SCOPED_TRACE(flag);
    const TrainedRun run = Train("", "1f1b", {flag});
    EXPECT_EQ(run.result.code, 1);
    EXPECT_THAT(run.result.err, AllOf(HasSubstr("forward (step 5, stage 3, micro-batch 3): the loss is nan"),
                                      HasSubstr("failed after 4 of 7 steps"), HasSubstr("train.non_finite")));
    if (flag != "--reference") {
      EXPECT_THAT(run.result.err,
                  AllOf(HasSubstr("no stage keeps the step's update, and it is made once more; "
                                  "the run begins again with step 1"),
                        HasSubstr("; the step was made twice")));
    }
    EXPECT_THAT(ReadWholeFile(folder_ / "out/steps.jsonl"), Not(HasSubstr("null")));
  }
}

// The weights grow by a factor of a million a step.
TEST_F(NonFinite, LearningRateThatIsTooLarge_FailsBehindTheSecondTryWithStepAndStage) {
  const TrainedRun run = TrainSmallRun(folder_,
                                       {{"train",
                                         "{steps: 30, batch: 16, microbatches: 4, seed: 1, optimizer: "
                                         "{sgd: {lr: 1000, weight_decay: 1000}}}"},
                                        {"schedule", "{lpp: {groups: 2, ranks: 2}}"},
                                        {"checkpoint", "{every: 1}"}},
                                       {"--processes=2"});
  EXPECT_EQ(run.result.code, 1);
  EXPECT_THAT(
      run.result.err,
      AllOf(HasSubstr("no stage keeps the step's update, and it is made once more; the run goes on from"),
            HasSubstr("; the step was made twice"),
            ::testing::ContainsRegex("the run failed after .*: (forward|backward|update) "
                                     "\\(step [0-9]+, stage [0-9]+, ")));
}

TEST_F(NonFinite, Skip_LeavesTheStepOutOfAllStagesUnderEverySchedule) {
  struct Rule {
    std::vector<std::string> schedules;
  };
  for (const Rule& rule :
       {Rule{{"1f1b", "ddp", "{fsdp: {shard: width}}", "{lpp: {groups: 2, ranks: 2}}"}},
        Rule{{"{gpipe: {}, rule: cdp_v2}", "{ddp: {}, rule: cdp_v2}"}}, Rule{{"pipedream_2bw"}}}) {
    Grow(rule.schedules[0]);
    const TrainedRun reference = Train("skip", rule.schedules[0], {"--reference"});
    ASSERT_EQ(reference.result.code, 0) << reference.result.err;
    EXPECT_THAT(reference.result.err, HasSubstr("step 5 is skipped: its gradient is not finite"));
    EXPECT_THAT(reference.result.out, HasSubstr("skipped      1 step whose gradient was not finite"));
    EXPECT_EQ(reference.summary["skipped_steps"], 1);
    for (const std::string& schedule : rule.schedules) {
      SCOPED_TRACE(schedule);
      const TrainedRun run = Train("skip", schedule, {"--processes", "2"});
      ASSERT_EQ(run.result.code, 0) << run.result.err;
      EXPECT_TRUE(run.weights == reference.weights) << "trained weights differ";
      EXPECT_EQ(run.skipped, std::vector<int>{kBrightStep});
      EXPECT_EQ(run.summary["skipped_steps"], 1);
      EXPECT_TRUE(run.summary["final_loss"].is_number());
    }
  }
}

TEST_F(NonFinite, Continue_GoesOnWithAWarningAndSaysThatTheLossIsNan) {
  Grow("1f1b");
  for (const std::string flag : {"--reference", "--processes=2"}) {
    SCOPED_TRACE(flag);
    const TrainedRun run = Train("continue", "1f1b", {flag});
    EXPECT_EQ(run.result.code, 0);
    EXPECT_THAT(run.result.err, AllOf(HasSubstr("step 5: the loss is nan; the run goes on"),
                                      HasSubstr("the last loss is nan")));
    EXPECT_THAT(run.result.out, HasSubstr("-> nan"));
    EXPECT_TRUE(run.summary["final_loss"].is_null());
    const CommandResult eval = Command::Run(
        {"weft", "eval", folder_ / "run.yaml", "--checkpoint", folder_ / "out/checkpoint", "-o", "json"});
    EXPECT_EQ(eval.code, 0) << eval.err;
    EXPECT_THAT(eval.out, HasSubstr("\"loss\": null"));
    EXPECT_THAT(eval.err, HasSubstr("the loss is not a finite number: the weights of "));
  }
}

TEST_F(NonFinite, AWrongChoice_IsRefusedWithItsLine) {
  const TrainedRun run = TrainWith("lr: 1", "skipp", "1f1b", {});
  EXPECT_EQ(run.result.code, 78);
  EXPECT_THAT(run.result.err,
              AllOf(HasSubstr("run.yaml:"), HasSubstr("train.non_finite"), HasSubstr("\"skip\"")));
}

// A formula that is 0 everywhere is no staleness at all.
TEST_F(NonFinite, ReferenceOfACustomScheduleWithoutStaleness_Trains) {
  const TrainedRun run = TrainSmallRun(
      folder_,
      {{"schedule", "{custom: {workers: 2, compute: \"s % W\", weights: \"s % W\", staleness: \"0\"}}"}},
      {"--reference"});
  EXPECT_EQ(run.result.code, 0) << run.result.err;
}

}  // namespace
}  // namespace weft::non_finite_test
