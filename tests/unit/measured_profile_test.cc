#include "client/files/measured_profile.h"

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "run/run_memory.h"
#include "tests/unit/small_run_spec.h"

namespace weft {
namespace {

// A run with each of its layers as a stage.
RunSpec LayersOfSmallRun() {
  Json run = With("/train/microbatches", 1);
  run["train"]["batch"] = 4;
  run["stages"] = Json::array({1, 1, 1, 1, 1, 1});
  run["schedule"] = "lpp,groups=1,ranks=1";
  auto spec = ParseRunSpec(run);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// Forwards of 1 s and backwards of 2, and the time of copies at `bandwidth` in each; 0 for none. All steps
// but one take longer.
Trace TraceOf(const RunSpec& run, double bandwidth) {
  RunSpec offloading = run;
  offloading.schedule.activations = "offload";
  const std::vector<StageMemory> layers = CountStages(offloading);
  Trace trace;
  for (int step = 0; step < 4; ++step) {
    for (size_t l = 0; l < layers.size(); ++l) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        DrawnJob job;
        job.job = Job::Compute(step, static_cast<int>(l), 0, kind);
        job.end = kind == JobKind::kForward ? 1 : 2;
        if (bandwidth > 0) job.end += static_cast<double>(layers[l].offloaded) / bandwidth;
        if (step != 2) job.end += 10 * (4 - step) * (bandwidth > 0 ? 1 : 2);
        trace.jobs.push_back(job);
      }
    }
  }
  return trace;
}

TEST(HostBandwidthOf_OffloadedLayers, WhatJobsTakeLonger_IsTheTimeOfTheirCopies) {
  const RunSpec run = LayersOfSmallRun();
  EXPECT_NEAR(HostBandwidthOf(run, TraceOf(run, 0), TraceOf(run, 1e6)), 1e6, 1);
  EXPECT_NEAR(HostBandwidthOf(run, TraceOf(run, 0), TraceOf(run, 5e3)), 5e3, 1);
  EXPECT_EQ(HostBandwidthOf(run, TraceOf(run, 1e6), TraceOf(run, 0)), 0) << "it does not show";
  EXPECT_EQ(HostBandwidthOf(run, TraceOf(run, 0), TraceOf(run, 0)), 0);
}

// Two ranks that compute at once: the second takes twice as long, and both take `longer` than alone.
Trace TogetherTrace(const RunSpec& run, double longer) {
  Trace trace;
  for (int step = 0; step < 4; ++step) {
    for (Rank rank = 0; rank < 2; ++rank) {
      for (int s = 0; s < run.stages(); ++s) {
        for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
          DrawnJob job;
          job.rank = rank;
          job.job = Job::Compute(step, s, rank, kind);
          job.end = (kind == JobKind::kForward ? 1 : 2) * longer * (1 + rank);
          trace.jobs.push_back(job);
        }
      }
    }
  }
  return trace;
}

TEST(SlowToTogether, RanksThatComputeAtOnce_GiveTheProfileTheirTimesAtSpeedOne) {
  const RunSpec run = LayersOfSmallRun();
  nlohmann::ordered_json profile = {{"layers", Json::array()}};
  for (int s = 0; s < run.stages(); ++s) {
    profile["layers"].push_back({{"forward", 1.0},
                                 {"backward", 2.0},
                                 {"backward_input", 1.2},
                                 {"backward_weight", 1.0},
                                 {"update", 0.5},
                                 {"weight_bytes", 100}});
  }
  RunSpec together = run;
  together.train.microbatches = 2;
  const std::vector<double> speeds = SlowToTogether(together, TogetherTrace(run, 1.5), &profile);
  ASSERT_EQ(speeds.size(), 2u);
  EXPECT_NEAR(speeds[0], 1, 1e-6);
  EXPECT_NEAR(speeds[1], 0.5, 1e-6);
  for (const auto& layer : profile["layers"]) {
    EXPECT_NEAR(layer["forward"].get<double>(), 1.5, 1e-6);
    EXPECT_NEAR(layer["backward"].get<double>(), 3, 1e-6);
    EXPECT_NEAR(layer["backward_input"].get<double>(), 1.8, 1e-6);
    EXPECT_NEAR(layer["backward_weight"].get<double>(), 1.5, 1e-6);
    EXPECT_NEAR(layer["update"].get<double>(), 0.75, 1e-6);
    EXPECT_EQ(layer["weight_bytes"], 100);
  }
}

}  // namespace
}  // namespace weft
