#include "coordinator/core/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedules/families/families.h"
#include "tests/unit/second.h"

namespace weft::job_watch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Job Forward(int microbatch, int stage = 0) { return Job::Compute(0, stage, microbatch, JobKind::kForward); }

Completion Took(const Job& job, int64_t seconds) { return {job, 5, 5 + seconds * kSecond}; }

class JobWatchTest : public ::testing::Test {
 protected:
  // One stage on one rank, in the order of micro-batches.
  JobWatchTest()
      : graph_(RunSchedule(*MakeSchedule("gpipe", {}, /*stages=*/2, /*microbatches=*/8), RunTerms())),
        times_(graph_, 0) {}

  JobWatch::Verdict Judge(const Job& job, int64_t seconds, int64_t now = 1000) {
    return watch_.Judge(now * kSecond, {{3, job, seconds * kSecond}}, times_);
  }
  std::optional<std::string> End(const Job& job, int64_t seconds) {
    return watch_.Ended(2000 * kSecond, 3, Took(job, seconds), times_);
  }

  const Graph graph_;
  JobTimes times_;
  JobWatch watch_{{.times = 10, .at_least_ns = 60 * kSecond, .first_ns = 3600 * kSecond}};
};

TEST_F(JobWatchTest, FirstOfItsKindAndStage_MayTakeItsOwnTime) {
  EXPECT_FALSE(Judge(Forward(0), 3600).stuck.has_value());
  EXPECT_EQ(Judge(Forward(0), 3601).stuck, Forward(0));
  End(Forward(0, /*stage=*/1), 1);
  EXPECT_FALSE(Judge(Forward(0), 3600).stuck.has_value()) << "another stage says nothing";
}

TEST_F(JobWatchTest, LongJobs_MayTakeAMultipleOfTheLongest) {
  End(Forward(0), 900);
  End(Forward(1), 1);
  EXPECT_EQ(watch_.LimitOf(Forward(2)), 9000 * kSecond);
  EXPECT_FALSE(Judge(Forward(2), 9000).stuck.has_value());
  EXPECT_EQ(Judge(Forward(2), 9001).stuck, Forward(2));
}

TEST_F(JobWatchTest, ShortJobs_MayTakeTheMinimum) {
  End(Forward(0), 0);
  EXPECT_FALSE(Judge(Forward(1), 60).stuck.has_value());
  const JobWatch::Verdict verdict = Judge(Forward(1), 61);
  ASSERT_EQ(verdict.stuck, Forward(1));
  EXPECT_THAT(verdict.reason,
              AllOf(HasSubstr("forward (step 0, stage 0, micro-batch 1) of rank 3 has run for "
                              "61.0 s and may take 60.0 s")));
}

TEST_F(JobWatchTest, SlowJob_IsNamedUntilItHasRunTwiceAsLong) {
  for (int b = 0; b < 3; ++b) End(Forward(b), 2);
  EXPECT_EQ(Judge(Forward(3), 7).slow, "") << "not four times as long";
  const std::string first = Judge(Forward(3), 8).slow;
  EXPECT_THAT(first, AllOf(HasSubstr("micro-batch 3) of rank 3 has run for more than 8 s"),
                           HasSubstr("where such jobs take 2.0 s and at most 2.0 s")));
  EXPECT_EQ(Judge(Forward(3), 15, /*now=*/1007).slow, first);
  EXPECT_THAT(Judge(Forward(3), 16, /*now=*/1008).slow, HasSubstr("more than 16 s"));
}

TEST_F(JobWatchTest, ShortJobs_AreNotSlowWithinSeconds) {
  for (int b = 0; b < 3; ++b) End(Forward(b), 0);
  EXPECT_EQ(Judge(Forward(3), 4).slow, "");
  EXPECT_NE(Judge(Forward(3), 5).slow, "");
}

TEST_F(JobWatchTest, SlowJobThatHasEnded_IsToldOnceWithItsTimes) {
  times_.Claimed(100 * kSecond, {Forward(3, 1)});
  times_.Ended(1970 * kSecond, Forward(3, 0));
  for (int b = 0; b < 3; ++b) EXPECT_FALSE(End(Forward(b, 1), 1).has_value());
  const std::optional<std::string> told = End(Forward(3, 1), 20);
  ASSERT_TRUE(told.has_value());
  // It ended at 2000 s and took 20 s.
  EXPECT_THAT(*told, AllOf(HasSubstr("micro-batch 3) of rank 3 took 20.0 s"),
                           HasSubstr("(claimed 1880.0 s and ready 10.0 s before it started)")));
}

TEST_F(JobWatchTest, TimesOfStepsThatAreOver_AreForgotten) {
  const Job job = Job::Compute(5, 1, 0, JobKind::kForward), before = Job::Compute(5, 0, 0, JobKind::kForward);
  times_.Claimed(1, {job, before});
  times_.Ended(2, before);
  times_.LeaveBefore(6);
  EXPECT_EQ(times_.Of(job).ready_ns, 2) << "the step before stays";
  times_.LeaveBefore(7);
  EXPECT_EQ(times_.Of(job).ready_ns, 0);
  EXPECT_EQ(times_.Of(job).claimed_ns, 0);
  times_.Ended(3, before);  // late
  EXPECT_EQ(times_.Of(Job::Compute(6, 0, 0, JobKind::kForward)).claimed_ns, 0);
}

}  // namespace
}  // namespace weft::job_watch_test
