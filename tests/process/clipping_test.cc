// Real trainings with clipped gradients and a learning-rate schedule, with the real programs: on two
// processes, under schedules that place stages and sums differently, the norms and the weights are those of
// the plain loop.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/trained_run.h"

namespace weft::clipping_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class Clipping : public ::testing::Test {
 protected:
  TrainedRun Train(const std::string& train, const std::string& schedule,
                   const std::vector<std::string>& flags) {
    return TrainSmallRun(folder_, {{"train", train}, {"schedule", schedule}}, flags);
  }

  TrainedRun Reference(const std::string& train, const std::string& schedule) {
    TrainedRun reference = Train(train, schedule, {"--reference"});
    EXPECT_EQ(reference.result.code, 0) << reference.result.err;
    return reference;
  }

  TestFolder folder_;
};

std::string TrainSection(int microbatches, double clip_norm) {
  return absl::StrCat(
      "{steps: 12, batch: 16, microbatches: ", microbatches, ", seed: 1, optimizer: {adamw: {lr: 1.0e-2}}, ",
      "lr_schedule: {cosine: {warmup: 3, min_lr: 1.0e-3}}, clip_norm: ", absl::StrFormat("%.17e", clip_norm),
      "}");
}

TEST_F(Clipping, SchedulesOnTwoProcesses_HaveTheReferencesNormsAndBits) {
  struct Rule {
    std::vector<std::string> schedules;
    int microbatches = 4;
  };
  for (const Rule& rule :
       {Rule{{"1f1b", "ddp", "fsdp", "{fsdp: {shard: width}}", "{lpp: {groups: 2, ranks: 2}}"}},
        Rule{{"{gpipe: , rule: cdp_v1}", "{fsdp: , rule: cdp_v1}", "{ddp: , rule: cdp_v1}"}},
        Rule{{"{1f1b: , rule: cdp_v2}", "{ddp: , rule: cdp_v2}"}}, Rule{{"pipedream_2bw"}},
        Rule{{"pipedream"}, 1}}) {
    const std::vector<double> norms =
        Reference(TrainSection(rule.microbatches, 1e6), rule.schedules[0]).norms;
    ASSERT_EQ(norms.size(), 12u);
    // Up to the step with the largest norm it is the same training, and that step is clipped.
    const double clip_norm = 0.999 * *std::max_element(norms.begin(), norms.end());
    const std::string train = TrainSection(rule.microbatches, clip_norm);
    const TrainedRun reference = Reference(train, rule.schedules[0]);
    const auto clipped = std::count_if(reference.norms.begin(), reference.norms.end(),
                                       [&](double norm) { return norm > clip_norm; });
    EXPECT_GT(clipped, 0) << rule.schedules[0];
    EXPECT_LT(clipped, 12) << rule.schedules[0];
    for (const std::string& schedule : rule.schedules) {
      SCOPED_TRACE(schedule);
      const TrainedRun trained = Train(train, schedule, {"--processes", "2"});
      ASSERT_EQ(trained.result.code, 0) << trained.result.err;
      EXPECT_EQ(trained.norms, reference.norms);
      EXPECT_EQ(trained.losses, reference.losses);
      EXPECT_TRUE(trained.weights == reference.weights) << "trained weights differ";
    }
  }
}

TEST_F(Clipping, ALossOrGradientThatIsNotFinite_EndsTheRunWithStepStageAndAdvice) {
  const std::string train =
      "{steps: 30, batch: 16, microbatches: 4, optimizer: {sgd: {lr: 1000}}, clip_norm: 1.0e+9}";
  for (const std::string flag : {"--reference", "--processes=2"}) {
    const TrainedRun trained = Train(train, "1f1b", {flag});
    EXPECT_EQ(trained.result.code, 1) << flag;
    EXPECT_THAT(trained.result.err, AnyOf(HasSubstr("the loss is "), HasSubstr("the gradient of stage ")))
        << flag;
    EXPECT_THAT(trained.result.err, HasSubstr(" (step ")) << flag;
    EXPECT_THAT(trained.result.err, HasSubstr("train.non_finite")) << flag;
  }
}

}  // namespace
}  // namespace weft::clipping_test
