// Tests that at most one rank of a process has the state of a stage, or the process ends.
#include "worker/shell/loop/state_holders.h"

#include "gtest/gtest.h"

namespace weft::state_holders_test {
namespace {

Job Forward(int stage, int microbatch) { return Job::Compute(3, stage, microbatch, JobKind::kForward); }

TEST(StateHolders, StatesThatComeAndGo_AreFine) {
  StateHolders holders;
  holders.Come(0, Forward(0, 0));
  holders.Come(0, Forward(1, 0));  // of another stage
  holders.Leave(0, Forward(0, 0));
  holders.Come(1, Forward(0, 1));
  holders.Stay(1, Forward(0, 1));
  holders.Leave(1, Forward(0, 1));
  holders.Come(0, Forward(0, 2));
  holders.Clear();
  holders.Come(1, Forward(0, 0));
}

TEST(StateHoldersDeathTest, SecondHolderOrNone_EndsTheProcessNamingTheJob) {
  StateHolders holders;
  EXPECT_DEATH(holders.Stay(1, Forward(2, 1)),
               "forward .step 3, stage 2, micro-batch 1., on rank 1, is to find the state");
  EXPECT_DEATH(holders.Leave(1, Forward(2, 1)), "on rank 1, gives away the state of its stage");
  holders.Come(0, Forward(2, 0));
  EXPECT_DEATH(
      holders.Come(1, Forward(2, 1)),
      "forward .step 3, stage 2, micro-batch 1., on rank 1, gets the state of its stage, which rank 0");
  EXPECT_DEATH(holders.Stay(1, Forward(2, 1)), "is to find the state");
  EXPECT_DEATH(holders.Leave(1, Forward(2, 0)), "gives away the state of its stage");
}

}  // namespace
}  // namespace weft::state_holders_test
