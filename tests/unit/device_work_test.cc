#include "worker/shell/loop/device_work.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/hand_job.h"
#include "tests/unit/second.h"

namespace weft::device_work_test {
namespace {

using ::testing::HasSubstr;

class DeviceWorkTest : public ::testing::Test {
 protected:
  std::shared_ptr<HandJob> Launch(int microbatch, int64_t now) {
    auto job = std::make_shared<HandJob>();
    work_.Add(LaunchedJobs::Launch{1, Forward(microbatch), true, false, now, job});
    return job;
  }
  std::shared_ptr<HandJob> Copy(int64_t now) {
    auto fence = std::make_shared<HandJob>();
    AwaitedTensors::Awaited copy;
    copy.key.consumer = 2;
    copy.tensor.ready = fence;
    copy.since_ns = now;
    work_.Add(std::move(copy));
    return fence;
  }

  static Job Forward(int microbatch) { return Job::Compute(0, 0, microbatch, JobKind::kForward); }

  DeviceWork work_{{/*copy_timeout_ns=*/5 * kSecond, /*grace_ns=*/2 * kSecond}};
};

TEST_F(DeviceWorkTest, JobsAndCopies_AreBusyUntilTheyAreTaken) {
  EXPECT_FALSE(work_.busy());
  const auto job = Launch(0, 0), copy = Copy(1);
  EXPECT_TRUE(work_.busy());
  EXPECT_FALSE(work_.Poll(0).any());
  job->answer = true;
  DeviceWork::Done done = work_.Poll(0);
  EXPECT_EQ(done.jobs.size(), 1u);
  EXPECT_TRUE(done.tensors.empty());
  EXPECT_TRUE(work_.busy());
  copy->answer = true;
  EXPECT_EQ(work_.Poll(0).tensors.size(), 1u);
  EXPECT_FALSE(work_.busy());
}

TEST_F(DeviceWorkTest, JobRuns_FromItsLaunchOrTheEndOfThoseBeforeIt) {
  EXPECT_FALSE(work_.Running(0).has_value());
  const auto first = Launch(0, 1 * kSecond), second = Launch(1, 2 * kSecond);
  EXPECT_EQ(work_.Running(6 * kSecond), (RunningJob{1, Forward(0), 5 * kSecond}));
  first->answer = true;
  work_.Poll(7 * kSecond);
  EXPECT_EQ(work_.Running(9 * kSecond), (RunningJob{1, Forward(1), 2 * kSecond}));
  EXPECT_FALSE(work_.IsLate(1000 * kSecond)) << "the coordinator says how long a job may take";
}

TEST_F(DeviceWorkTest, CopyThatWaitsForNoJobAndTakesTooLong_IsLateAndNamed) {
  Copy(3 * kSecond);
  const auto job = Launch(4, 1 * kSecond);
  EXPECT_THAT(std::string(work_.NotDone(7 * kSecond).message()),
              HasSubstr("micro-batch 4) on rank 1 was given to the device 6.0 s ago"));
  EXPECT_FALSE(work_.IsLate(20 * kSecond)) << "the job may run for long";
  job->answer = true;
  work_.Poll(20 * kSecond);
  EXPECT_FALSE(work_.IsLate(25 * kSecond));
  EXPECT_TRUE(work_.IsLate(25 * kSecond + 1));
  EXPECT_THAT(std::string(work_.NotDone(25 * kSecond).message()), HasSubstr("a copy of the activation"));
}

TEST_F(DeviceWorkTest, GraceOfARunThatIsOver_BeginsOnceUnlessItIsRestarted) {
  Launch(0, 0);
  EXPECT_FALSE(work_.IsGivenUp(100 * kSecond)) << "the run goes on";
  work_.BeginGrace(10 * kSecond);
  work_.BeginGrace(11 * kSecond);
  EXPECT_FALSE(work_.IsGivenUp(12 * kSecond));
  EXPECT_TRUE(work_.IsGivenUp(12 * kSecond + 1));
  work_.RestartGrace(12 * kSecond);
  EXPECT_FALSE(work_.IsGivenUp(14 * kSecond));
  work_.EndGrace();
  EXPECT_FALSE(work_.IsGivenUp(100 * kSecond));
}

TEST_F(DeviceWorkTest, ReleasedWork_KeepsItsMemory) {
  const std::weak_ptr<HandJob> job = Launch(0, 0);
  std::shared_ptr<void> kept = work_.Release();
  EXPECT_FALSE(job.expired());
  kept.reset();
  EXPECT_TRUE(job.expired());
}

}  // namespace
}  // namespace weft::device_work_test
