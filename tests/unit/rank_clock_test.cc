#include "worker/core/rank_clock.h"

#include "gtest/gtest.h"

namespace weft::rank_clock_test {
namespace {

int64_t Sum(const RankClock& clock) {
  int64_t sum = 0;
  for (int k = 0; k < kJobKinds; ++k) sum += clock.busy(static_cast<JobKind>(k));
  for (int c = 0; c < kIdleCauses; ++c) sum += clock.idle(static_cast<IdleCause>(c));
  return sum;
}

TEST(RankClock, JobThatEndsAsItReturns_TheTimeAroundItIsDispatch) {
  RankClock clock(0);
  clock.Idle(10, IdleCause::kDispatch);
  clock.Job(45, 12, 40, JobKind::kForward);
  EXPECT_EQ(clock.busy(JobKind::kForward), 28);
  EXPECT_EQ(clock.idle(IdleCause::kDispatch), 7);
  EXPECT_EQ(clock.idle(IdleCause::kNoWork), 10);
  EXPECT_EQ(Sum(clock), clock.wall());
  EXPECT_EQ(clock.wall(), 45);
}

TEST(RankClock, LaunchedJobs_AreBusyByTheDevicesTimesAndIdleForWhatWasNotedThen) {
  RankClock clock(0);
  clock.Idle(10, IdleCause::kDispatch);  // the first is started
  clock.Launched();
  clock.Idle(12, IdleCause::kDependency);
  clock.Idle(20, IdleCause::kMemory);
  clock.Idle(55, IdleCause::kDispatch);  // the second is started, long after the first has ended
  clock.Launched();
  clock.Idle(58, IdleCause::kDependency);
  EXPECT_EQ(clock.wall(), 10) << "what the device did is not known yet";
  EXPECT_EQ(clock.cause(), IdleCause::kDependency);
  clock.Job(70, 15, 50, JobKind::kForward, /*overlapped=*/false, /*in_flight=*/true);
  EXPECT_EQ(clock.wall(), 50);
  EXPECT_EQ(clock.idle(IdleCause::kDispatch), 2);
  EXPECT_EQ(clock.idle(IdleCause::kDependency), 3);
  clock.Job(95, 60, 90, JobKind::kBackward, false, false, {/*at=*/55});
  EXPECT_EQ(clock.busy(JobKind::kForward), 35);
  EXPECT_EQ(clock.busy(JobKind::kBackward), 30);
  EXPECT_EQ(clock.idle(IdleCause::kMemory), 5);
  EXPECT_EQ(clock.idle(IdleCause::kDispatch), 2 + 5);
  EXPECT_EQ(clock.idle(IdleCause::kDependency), 3 + 5);
  EXPECT_EQ(Sum(clock), clock.wall());
  EXPECT_EQ(clock.wall(), 95);
  clock.Idle(100, IdleCause::kNoWork);
  EXPECT_EQ(clock.wall(), 100) << "nothing is in flight: the clock is no longer behind";
}

TEST(RankClock, ArrivalWhileAJobIsLaunched_IsTransferWhereTheDeviceWasIdle) {
  RankClock clock(0);
  clock.Idle(10, IdleCause::kDispatch);
  clock.Launched();
  clock.Idle(11, IdleCause::kDependency);
  clock.Arrived(60, 30);
  clock.Idle(61, IdleCause::kDispatch);
  clock.Launched();
  clock.Job(70, 11, 40, JobKind::kForward, false, true);
  clock.Job(90, 65, 90, JobKind::kForward, false, false, {/*at=*/61});
  EXPECT_EQ(clock.idle(IdleCause::kDispatch), 1 + 4);
  EXPECT_EQ(clock.idle(IdleCause::kTransfer), 20) << "from the end of the first job on";
  EXPECT_EQ(clock.idle(IdleCause::kDependency), 1);
  EXPECT_EQ(clock.busy(JobKind::kForward), 54);
  EXPECT_EQ(Sum(clock), clock.wall());
}

TEST(RankClock, GapBeforeAJobThatTheDeviceHad_IsItsInputsAndThenDispatch) {
  RankClock clock(0);
  clock.Idle(10, IdleCause::kDispatch);
  clock.Launched();
  clock.Idle(20, IdleCause::kDispatch);
  clock.Launched();
  clock.Idle(21, IdleCause::kMemory);  // what holds back the job after it
  clock.Job(45, 10, 40, JobKind::kForward, false, true, {10, 0});
  clock.Job(90, 60, 90, JobKind::kForward, false, false, {20, /*inputs_made=*/55});
  EXPECT_EQ(clock.idle(IdleCause::kDependency), 15);
  EXPECT_EQ(clock.idle(IdleCause::kDispatch), 5);
  EXPECT_EQ(clock.idle(IdleCause::kMemory), 0);
  EXPECT_EQ(clock.cause(), IdleCause::kMemory);
  EXPECT_EQ(Sum(clock), clock.wall());
}

// The device's times come from another clock, and may be off a little.
TEST(RankClock, TimesThatOverlapOrRunBackwards_StillSumToWallTime) {
  RankClock clock(0);
  clock.Idle(10, IdleCause::kDispatch);
  clock.Launched();
  clock.Job(70, 8, 40, JobKind::kForward, false, true);
  clock.Job(71, 30, 60, JobKind::kBackward, false, true);
  clock.Job(72, 50, 55, JobKind::kForward);
  EXPECT_EQ(clock.busy(JobKind::kForward), 30);
  EXPECT_EQ(clock.busy(JobKind::kBackward), 20);
  EXPECT_EQ(Sum(clock), clock.wall());
  EXPECT_EQ(clock.wall(), 72);
}

TEST(RankClock, IntervalsOfIdleness_AreTheLastOnesInOrder) {
  RankClock clock(0, /*max_spans=*/3);
  clock.Idle(10, IdleCause::kDispatch);
  clock.Job(45, 12, 40, JobKind::kForward);
  clock.Idle(50, IdleCause::kDependency);
  clock.Idle(60, IdleCause::kLimit);
  clock.Idle(61, IdleCause::kLimit);
  const std::vector<IdleSpan> last(clock.spans().begin(), clock.spans().end());
  const std::vector<IdleSpan> expected = {
      {IdleCause::kDispatch, 40, 50}, {IdleCause::kDependency, 50, 60}, {IdleCause::kLimit, 60, 61}};
  EXPECT_EQ(last, expected) << "two that follow one another for one cause are one";
}

TEST(RankClock, DeviceThatIsNeverIdle_KeepsFewNotes) {
  RankClock clock(0);
  for (int64_t i = 0; i < 100'000; ++i) {
    const int64_t now = 10 * i;
    clock.Idle(now, IdleCause::kDispatch);
    clock.Launched();
    clock.Idle(now + 1, IdleCause::kDependency);
    clock.Arrived(now + 3, now + 2);
    if (i > 0) clock.Job(now + 4, now - 10, now, JobKind::kForward, false, /*in_flight=*/true);
    ASSERT_LE(clock.unsettled(), 8u);
  }
  EXPECT_EQ(clock.wall(), 999'990);
  EXPECT_EQ(clock.busy(JobKind::kForward), 999'990);
}

}  // namespace
}  // namespace weft::rank_clock_test
