#include "run/run_peaks.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/small_run_spec.h"

namespace weft {
namespace {

RunSpec RunUnder(const Json& schedule) {
  const auto run = ParseRunSpec(With("/schedule", schedule));
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

std::vector<PeakBytes> SimulatedPeaks(const RunSpec& run) {
  const RunSchedule schedule = *ScheduleOf(run);
  SimulationOptions options;
  options.steps = run.train.steps;
  options.record_jobs = true;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  return CountPeaks(run, schedule, Simulate(Graph(schedule), options)->jobs);
}

// Rank s of four has 4 - s activations at once, one version, and one sum. Whether another process reads an
// output in place or copies it decides how long that stays.
TEST(CountPeaks, OneForwardOneBackward_IsExactButForBuffersAndOutputs) {
  const RunSpec run = RunUnder({{"1f1b", nullptr}});
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  ASSERT_EQ(peaks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const StageMemory stage = CountStage(run, rank);
    const auto& [least, most] = peaks[rank];
    for (const ClassBytes& bytes : {least, most}) {
      EXPECT_EQ(bytes.weights, stage.parameters);
      EXPECT_EQ(bytes.gradients, stage.parameters);
      EXPECT_EQ(bytes.optimizer, 2 * stage.parameters);
    }
    EXPECT_EQ(least.activations, (4 - rank) * (stage.activation_bytes - stage.output) + stage.output);
    EXPECT_EQ(most.activations, (4 - rank) * stage.activation_bytes);
    EXPECT_GT(most.buffers, 0);
  }
}

// Each stage but the last reads weights that are old, and keeps so many versions.
TEST(CountPeaks, OldWeights_KeepTheirVersions) {
  Json text = With("/schedule", {{"pipedream", nullptr}});
  text["train"]["microbatches"] = 1;
  text["train"]["steps"] = 8;
  const RunSpec run = *ParseRunSpec(text);
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(peaks[rank].least.weights, (4 - rank) * CountStage(run, rank).parameters) << rank;
    EXPECT_EQ(peaks[rank].most.weights, peaks[rank].least.weights);
  }
}

// A gradient that comes before its turn waits beside the sum.
TEST(CountPeaks, BackwardsOutOfOrder_WaitBesideTheSum) {
  RunSpec run = RunUnder(
      {{"custom", {{"ranks", 1}, {"compute", "0"}, {"priority", "(k == forward)*B*S + (B-1-b)*S + s"}}}});
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  int64_t sums = 0, waiting = 0;
  for (int stage = 0; stage < run.stages(); ++stage) sums += CountStage(run, stage).parameters;
  waiting = peaks[0].most.gradients - sums;
  EXPECT_GT(waiting, 0);
  EXPECT_EQ(peaks[0].least.gradients, peaks[0].most.gradients);
}

// Each rank holds a slice of every stage; the slices of a stage are the whole.
TEST(CountPeaks, WeightsByWidth_AreCountedSliceBySlice) {
  Json text = With("/schedule", {{"fsdp", {{"shard", "width"}}}});
  text["train"]["microbatches"] = 4;
  const RunSpec run = *ParseRunSpec(text);
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  int64_t whole = 0, of_ranks = 0;
  for (int stage = 0; stage < run.stages(); ++stage) whole += CountStage(run, stage).parameters;
  for (const PeakBytes& rank : peaks) {
    EXPECT_EQ(rank.least.optimizer, rank.most.optimizer);
    EXPECT_EQ(2 * rank.least.weights, rank.least.optimizer) << "two moments of what is held";
    EXPECT_EQ(rank.most.weights, 2 * rank.least.weights) << "an update may write beside what others read";
    of_ranks += rank.least.weights;
  }
  EXPECT_EQ(of_ranks, whole);
}

}  // namespace
}  // namespace weft
