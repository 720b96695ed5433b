#include "worker/core/jobs_in_flight.h"

#include "gtest/gtest.h"

namespace weft::jobs_in_flight_test {
namespace {

TEST(JobsInFlight, EndedJob_FreesItsThread) {
  JobsInFlight jobs;
  jobs.Start(1, 10, /*overlapped=*/false, /*begins=*/false);
  EXPECT_TRUE(jobs.IsRunning(10));
  EXPECT_FALSE(jobs.idle());
  bool overlapped = true;
  jobs.End(10, /*launched=*/false, &overlapped);
  EXPECT_FALSE(overlapped);
  EXPECT_TRUE(jobs.idle());
  EXPECT_TRUE(jobs.empty());
}

TEST(JobsInFlight, LaunchedJob_FreesItsThreadAndStaysInFlight) {
  JobsInFlight jobs;
  jobs.Start(1, 10, false, false);
  jobs.Launch(10);
  EXPECT_TRUE(jobs.idle());
  EXPECT_FALSE(jobs.empty());
  EXPECT_EQ(jobs.CountComputing(/*overlapped=*/false), 1);
  EXPECT_EQ(jobs.newest_in_turn(), 10);
  EXPECT_FALSE(jobs.IsRunning(10));
}

TEST(JobsInFlight, JobBesideAForward_OverlapsWithItWhicheverEndsFirst) {
  for (const JobId first : {10, 11}) {
    JobsInFlight jobs;
    jobs.Start(1, 10, false, false);
    jobs.Start(2, 11, /*overlapped=*/true, false);
    EXPECT_TRUE(jobs.has_overlapped());
    EXPECT_EQ(jobs.newest_in_turn(), 10);
    bool overlapped = false;
    jobs.End(first, false, &overlapped);
    EXPECT_TRUE(overlapped) << first;
    jobs.End(first == 10 ? 11 : 10, false, &overlapped);
    EXPECT_FALSE(overlapped) << first;
  }
}

TEST(JobsInFlight, LaunchedJobs_DoNotOverlapWhenTheFirstIsDone) {
  JobsInFlight jobs;
  jobs.Start(1, 10, false, false);
  jobs.Launch(10);
  jobs.Start(2, 11, false, false);
  jobs.Launch(11);
  bool overlapped = true;
  jobs.End(10, /*launched=*/true, &overlapped);
  EXPECT_FALSE(overlapped);
}

TEST(JobsInFlight, BeginOfAJointOperation_ComputesNothing) {
  JobsInFlight jobs;
  jobs.Start(1, 10, false, /*begins=*/true);
  EXPECT_FALSE(jobs.idle());
  EXPECT_EQ(jobs.CountComputing(false), 0);
}

TEST(JobsInFlight, SecondStartOfAJob_EndsApartFromTheLaunchedFirst) {
  JobsInFlight jobs;
  jobs.Start(1, 10, false, false);
  jobs.Launch(10);
  jobs.Start(5, 10, false, false);
  bool overlapped = false;
  EXPECT_EQ(jobs.End(10, /*launched=*/true, &overlapped).at, 1);
  EXPECT_TRUE(jobs.IsRunning(10));
  EXPECT_EQ(jobs.End(10, /*launched=*/false, &overlapped).at, 5);
}

TEST(JobsInFlight, LatestInputOfAJob_IsKeptUntilItEnds) {
  JobsInFlight jobs;
  jobs.Start(1, 10, false, false);
  jobs.NoteMade(10, 7);
  jobs.NoteMade(10, 4);
  jobs.NoteMade(99, 8);  // not in flight
  bool overlapped = false;
  EXPECT_EQ(jobs.End(10, false, &overlapped).inputs_made, 7);
}

TEST(JobsInFlightDeathTest, EndWithoutAStart_Aborts) {
  JobsInFlight jobs;
  bool overlapped = false;
  EXPECT_DEATH(jobs.End(10, false, &overlapped), "only a started job ends");
  EXPECT_DEATH(jobs.Launch(10), "only a started job is launched");
}

}  // namespace
}  // namespace weft::jobs_in_flight_test
