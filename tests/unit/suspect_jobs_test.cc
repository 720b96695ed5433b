#include "coordinator/core/suspect_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::suspect_jobs_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Job kFirst = Job::Compute(3, 1, 0, JobKind::kForward);
const Job kSecond = Job::Compute(3, 1, 1, JobKind::kForward);
const Job kThird = Job::Compute(3, 1, 0, JobKind::kBackward);

ProcessLoss LossOf(int pid) {
  return {absl::StrCat("process 0 (w, pid ", pid, ")"), "was killed by SIGSEGV", ""};
}

TEST(SuspectJobs, JobInHandAtThreeLossesOfTwoProcesses_IsPoison) {
  SuspectJobs suspects;
  suspects.Lost(LossOf(1), {kFirst, kSecond});
  suspects.Lost(LossOf(2), {kSecond, kThird});
  EXPECT_FALSE(suspects.Poisoned(3));
  suspects.Lost({"process 1 (v, pid 3)", "exited with code 1: last", "first | second"}, {kSecond});
  EXPECT_TRUE(suspects.Poisoned(3));
  EXPECT_THAT(suspects.Describe(),
              AllOf(HasSubstr("3 processes in a row were lost with the same job in hand"),
                    HasSubstr("forward (step 3, stage 1, micro-batch 1)"), Not(HasSubstr("micro-batch 0")),
                    HasSubstr("process 0 (w, pid 1): was killed by SIGSEGV; process 0 (w, pid 2)"),
                    HasSubstr("pid 3): exited with code 1: last (before that it wrote: first | second)")));
}

TEST(SuspectJobs, Steps_AreWatchedUpToTheLastOfASuspect) {
  SuspectJobs suspects;
  EXPECT_EQ(suspects.watched_before(), 0);
  suspects.Lost(LossOf(1), {kFirst, Job::Compute(kFirst.step + 2, 0, 0, JobKind::kForward)});
  EXPECT_EQ(suspects.watched_before(), kFirst.step + 3);
  suspects.Lost(LossOf(2), {kFirst});
  EXPECT_EQ(suspects.watched_before(), kFirst.step + 1);
}

TEST(SuspectJobs, ThreeLossesOfOneProcess_AreNoPoison) {
  SuspectJobs suspects;
  for (int i = 0; i < 20; ++i) suspects.Lost(LossOf(1), {kFirst});
  EXPECT_FALSE(suspects.Poisoned(3));
  suspects.Lost(LossOf(2), {kFirst});
  EXPECT_TRUE(suspects.Poisoned(3));
}

TEST(SuspectJobs, JobThatIsDone_IsNoSuspect) {
  SuspectJobs suspects;
  for (int pid = 1; pid <= 2; ++pid) suspects.Lost(LossOf(pid), {kFirst, kSecond});
  suspects.Done(kFirst);
  suspects.Lost(LossOf(3), {kFirst});
  EXPECT_FALSE(suspects.Poisoned(3)) << "the count begins anew";
  for (int pid = 4; pid <= 5; ++pid) suspects.Lost(LossOf(pid), {kFirst});
  EXPECT_TRUE(suspects.Poisoned(3));
  suspects.Done(kFirst);
  EXPECT_FALSE(suspects.Poisoned(1));
}

TEST(SuspectJobs, LossWithoutAJobInHand_SaysNothing) {
  SuspectJobs suspects;
  for (int pid = 1; pid <= 2; ++pid) suspects.Lost(LossOf(pid), {kFirst});
  suspects.Lost(LossOf(3), {});
  EXPECT_FALSE(suspects.Poisoned(3));
  suspects.Lost(LossOf(4), {kFirst});
  EXPECT_TRUE(suspects.Poisoned(3));
}

TEST(SuspectJobs, ManySuspects_AreNamedInPart) {
  SuspectJobs suspects;
  std::vector<Job> jobs;
  for (int b = 0; b < 7; ++b) jobs.push_back(Job::Compute(0, 0, b, JobKind::kForward));
  suspects.Lost(LossOf(1), jobs);
  EXPECT_THAT(suspects.Describe(),
              AllOf(HasSubstr("the same jobs in hand"), HasSubstr("micro-batch 3) and 3 more"),
                    Not(HasSubstr("micro-batch 4"))));
}

}  // namespace
}  // namespace weft::suspect_jobs_test
