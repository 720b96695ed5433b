// Real trainings in bfloat16 with the real programs: on one and two processes, under schedules that place
// stages, sums and weights differently, the weights are those of the plain loop, and activations that travel
// take half the bytes.
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/trained_run.h"

namespace weft::precision_test {
namespace {

using ::testing::HasSubstr;

class PrecisionRuns : public ::testing::Test {
 protected:
  TrainedRun Train(const std::map<std::string, std::string>& changes, const std::vector<std::string>& flags) {
    return TrainSmallRun(folder_, changes, flags);
  }

  TestFolder folder_;
};

TEST_F(PrecisionRuns, BFloat16OnOneAndTwoProcesses_EndsWithTheReferencesBits) {
  struct Rule {
    std::string reference;
    std::vector<std::string> schedules;
  };
  for (const Rule& rule :
       {Rule{"1f1b",
             {"1f1b", "ddp", "fsdp", "{fsdp: {shard: width}}", "zb_h1",
              "{1f1b: , activations: [recompute, retain, offload, retain]}"}},
        Rule{"{1f1b: , rule: cdp_v2}", {"{1f1b: , rule: cdp_v2}", "{ddp: , rule: cdp_v2}"}}}) {
    const TrainedRun reference =
        Train({{"precision", "bf16"}, {"schedule", rule.reference}}, {"--reference"});
    ASSERT_EQ(reference.result.code, 0) << reference.result.err;
    for (const std::string& schedule : rule.schedules) {
      for (const char* processes : {"1", "2"}) {
        SCOPED_TRACE(schedule + ", processes: " + processes);
        const TrainedRun trained =
            Train({{"precision", "{compute: bf16, weights: fp32}"}, {"schedule", schedule}},
                  {"--processes", processes});
        ASSERT_EQ(trained.result.code, 0) << trained.result.err;
        EXPECT_EQ(trained.losses, reference.losses);
        EXPECT_TRUE(trained.weights == reference.weights) << "trained weights differ";
      }
    }
  }
}

// A text of a few words, learned in either precision.
TEST_F(PrecisionRuns, Loss_FallsInBFloat16AsInFloat32) {
  std::map<std::string, std::string> changes = {
      {"train", "{steps: 40, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 3.0e-3}}}"},
      {"precision", "float32"}};
  const TrainedRun wide = Train(changes, {"--processes", "2"});
  ASSERT_EQ(wide.result.code, 0) << wide.result.err;
  changes["precision"] = "bf16";
  const TrainedRun narrow = Train(changes, {"--processes", "2"});
  ASSERT_EQ(narrow.result.code, 0) << narrow.result.err;
  EXPECT_TRUE(narrow.weights != wide.weights);
  ASSERT_EQ(wide.losses.size(), 40u);
  const double fall = wide.losses.front() - wide.losses.back();
  EXPECT_GT(fall, 1);
  EXPECT_GT(narrow.losses.front() - narrow.losses.back(), 0.8 * fall);
  const auto sent = [](const TrainedRun& t) { return t.summary["bytes_sent"]["activation"].get<double>(); };
  EXPECT_GT(sent(wide), 0);
  EXPECT_DOUBLE_EQ(sent(narrow), sent(wide) / 2);
}

TEST_F(PrecisionRuns, WeightsInBFloat16_AreRefusedBeforeAnythingStarts) {
  const TrainedRun trained = Train({{"precision", "{compute: bf16, weights: bf16}"}}, {});
  EXPECT_EQ(trained.result.code, 78);
  EXPECT_THAT(trained.result.err, HasSubstr("precision.weights: must be float32, not bf16"));
}

}  // namespace
}  // namespace weft::precision_test
