#include "client/files/measured_profile.h"

#include <cstddef>

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

}  // namespace
}  // namespace weft
