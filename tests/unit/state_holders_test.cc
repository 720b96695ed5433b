// Tests that at most one rank of a process has the state of a stage, or the process ends.
#include "worker/shell/state_holders.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

constexpr StateVisit kBegins{true, false, true, false}, kArrives{false, true, true, false},
    kStays{false, false, true, false};

Job Forward(int stage, int microbatch) { return Job::Compute(3, stage, microbatch, JobKind::kForward); }

TEST(StateHolders, StatesThatComeAndGo_AreFine) {
  StateHolders holders;
  holders.Visit(0, Forward(0, 0), kBegins);
  holders.Visit(0, Forward(1, 0), kBegins);  // of another stage
  holders.Leave(0, Forward(0, 0));
  holders.Visit(1, Forward(0, 1), kArrives);
  holders.Visit(1, Forward(0, 1), kStays);
  holders.Leave(1, Forward(0, 1));
  holders.Visit(0, Forward(0, 2), kArrives);
  holders.Clear();
  holders.Visit(1, Forward(0, 0), kBegins);
}

TEST(StateHoldersDeathTest, SecondHolderOrNone_EndsTheProcessNamingTheJob) {
  StateHolders holders;
  EXPECT_DEATH(holders.Visit(1, Forward(2, 1), kStays),
               "forward .step 3, stage 2, micro-batch 1., on rank 1, is to find the state");
  EXPECT_DEATH(holders.Leave(1, Forward(2, 1)), "on rank 1, gives away the state of its stage");
  holders.Visit(0, Forward(2, 0), kArrives);
  EXPECT_DEATH(
      holders.Visit(1, Forward(2, 1), kArrives),
      "forward .step 3, stage 2, micro-batch 1., on rank 1, gets the state of its stage, which rank 0");
  EXPECT_DEATH(holders.Visit(1, Forward(2, 1), kStays), "is to find the state");
  EXPECT_DEATH(holders.Leave(1, Forward(2, 0)), "gives away the state of its stage");
}

}  // namespace
}  // namespace weft
