// Tests the values with which the coordinator's core counts times for the metrics.
#include <gtest/gtest.h>

#include "coordinator/core/duration_counts.h"
#include "coordinator/core/running_time.h"

namespace weft::coordinator_counts_test {
namespace {

TEST(DurationCounts, Durations_AreCountedInTheBucketThatHoldsThem) {
  DurationCounts<100, 4, 3> counts;
  EXPECT_EQ(counts.Bounds(), (std::array<int64_t, 3>{100, 400, 1600}));
  for (const int64_t ns : {0, 100, 101, 400, 1600, 1601}) counts.Add(ns);
  EXPECT_EQ(counts.counts, (std::array<uint64_t, 4>{2, 2, 1, 1}));
  EXPECT_EQ(counts.total(), 6u);
  EXPECT_EQ(counts.sum_ns, 3802);
}

TEST(DurationCounts, NegativeDuration_CountsAsNone) {
  DurationCounts<100, 2, 1> counts;
  counts.Add(-5);
  EXPECT_EQ(counts.counts[0], 1u);
  EXPECT_EQ(counts.sum_ns, 0);
}

TEST(RunningTime, TimeWithoutARun_CountsForNothing) {
  RunningTime time;
  time.Pass(1000, 0);
  time.Pass(5000, 0);
  EXPECT_EQ(time.total(), 0);
  EXPECT_EQ(time.grows_since(), 0);
  time.Set(true);
  EXPECT_EQ(time.grows_since(), 5000);
  time.Pass(5300, 0);
  EXPECT_EQ(time.total(), 300);
  EXPECT_EQ(time.step_wait(0), 300);
}

TEST(RunningTime, StepEnds_TheWaitBeginsAnew) {
  RunningTime time;
  time.Pass(1000, 0);
  time.Set(true);
  time.Pass(1500, 0);
  EXPECT_EQ(time.step_wait(1), 0) << "the step has ended since the last pass";
  time.Pass(1700, 1);
  EXPECT_EQ(time.step_wait(1), 200);
  EXPECT_EQ(time.total(), 700);
}

TEST(RunningTime, NoRunRunsForAWhile_TheWaitBeginsAnewWithTheNext) {
  RunningTime time;
  time.Pass(1000, 0);
  time.Set(true);
  time.Pass(1500, 0);
  time.Set(false);
  EXPECT_EQ(time.step_wait(0), 0);
  time.Pass(9000, 0);
  time.Set(true);
  time.Pass(9100, 0);
  EXPECT_EQ(time.step_wait(0), 100);
  EXPECT_EQ(time.total(), 600);
}

}  // namespace
}  // namespace weft::coordinator_counts_test
