#include "coordinator/record/run_view.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft::run_view_test {
namespace {

TEST(RunView, FiguresOfAValidation_AreItsLossAndEachMetric) {
  EXPECT_EQ(ValidatedText(Validation{1, 8, 4, 4, 1.25, {{"accuracy", 0.5}, {"perplexity", 12345.5}}}),
            "loss 1.2500, accuracy 0.5000, perplexity 12345.5 after step 8");
}

TEST(GpuText, NothingKnown_IsEmpty) { EXPECT_EQ(GpuText({}), ""); }

TEST(GpuText, Figures_AreSaidAsFarAsTheyAreKnown) {
  EXPECT_EQ(GpuText({{"utilization", 0.871}, {"temperature_celsius", 63}, {"power_watts", 412.4}}),
            "GPU 87 % busy, 63 \u00b0C, 412 W");
  EXPECT_EQ(GpuText({{"temperature_celsius", 63}}), "GPU 63 \u00b0C");
}

TEST(GpuText, Throttling_IsNamedOnlyWhileItIs) {
  EXPECT_EQ(GpuText({{"utilization", 1}, {"throttled_power_cap", 1}, {"throttled_thermal", 0}}),
            "GPU 100 % busy, throttled (power_cap)");
}

TEST(RunJson, RankOnAGpu_HasItsFigures) {
  RunInfo run;
  run.reports.resize(2);
  run.reports[1].rank = 1;
  run.reports[1].gpu = {{"power_watts", 412.5}};
  const auto json = RunJson(run);
  EXPECT_FALSE(json["rank_reports"][0].contains("gpu"));
  EXPECT_EQ(json["rank_reports"][1]["gpu"]["power_watts"], 412.5);
}

}  // namespace
}  // namespace weft::run_view_test
