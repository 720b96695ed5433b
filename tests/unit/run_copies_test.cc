// Tests which copies of a run's state the coordinator begins an attempt with, and which it lets go.
#include "coordinator/core/run_copies.h"

#include <memory>
#include <set>
#include <vector>

#include "coordinator/core/run_plan.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::run_copies_test {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr int32_t kAll = 1000;

// Two stages on two ranks, in processes of sessions 1 and 2: each keeps its own part and the other's.
class TwoProcesses : public ::testing::Test {
 protected:
  TwoProcesses() { copies_.Begin(plan_->graph, ReductionMode::kOrdered, kEpoch, 0); }

  static std::shared_ptr<const RunPlan> Plan() {
    return *MakeRunPlan("r", "1f1b", WithoutTerms(*MakeSchedule("1f1b", {}, 2, 4)), 20);
  }
  bool Keep(SessionId session, int32_t step, std::vector<StatePart> parts, uint64_t epoch = kEpoch) {
    return copies_.Take(session, {1, epoch, step, std::move(parts)});
  }
  // Both processes keep both parts.
  void Complete(int32_t step, uint64_t epoch = kEpoch) {
    for (const SessionId session : {1, 2}) Keep(session, step, {{0, 0}, {1, 0}}, epoch);
  }

  const std::shared_ptr<const RunPlan> plan_ = Plan();
  RunCopies copies_;
};

TEST_F(TwoProcesses, EachPartInOneProcess_CanBeginButIsNotComplete) {
  EXPECT_EQ(copies_.hold(), 2);
  Keep(1, 1, {{0, 0}});
  EXPECT_FALSE(copies_.Newest(kAll).has_value()) << "stage 1 is nowhere";
  Keep(2, 1, {{1, 0}});
  ASSERT_TRUE(copies_.Newest(kAll).has_value());
  EXPECT_EQ(copies_.Newest(kAll)->step, 1);
  EXPECT_EQ(copies_.Newest(kAll)->epoch, kEpoch);
  EXPECT_EQ(copies_.TakeComplete(), std::nullopt);
  EXPECT_EQ(copies_.hold(), 2) << "no further step is granted";
  EXPECT_FALSE(copies_.Newest(0).has_value()) << "a step that has not been reported";
  Keep(1, 1, {{1, 0}});
  Keep(2, 1, {{0, 0}});
  EXPECT_EQ(copies_.TakeComplete(), 1);
  EXPECT_EQ(copies_.TakeComplete(), std::nullopt) << "told once";
  EXPECT_EQ(copies_.hold(), 3);
}

TEST_F(TwoProcesses, AProcessLost_TheOtherHasAllOfTheNewestCompleteStep) {
  Complete(3);
  Keep(1, 4, {{0, 0}});
  Keep(2, 4, {{1, 0}});
  copies_.Lose(1);
  const auto beginning = copies_.Newest(kAll);
  ASSERT_TRUE(beginning.has_value());
  EXPECT_EQ(beginning->step, 3);
  EXPECT_EQ(beginning->keepers.at(StatePart{0, 0}), 2u);
  EXPECT_EQ(beginning->keepers.at(StatePart{1, 0}), 2u);
  copies_.Lose(2);
  EXPECT_FALSE(copies_.Newest(kAll).has_value());
}

TEST_F(TwoProcesses, AProcessThatDoesNotServe_IsNotAsked) {
  Complete(3);
  const std::set<SessionId> one = {2}, none = {5};
  ASSERT_TRUE(copies_.Newest(kAll, &one).has_value());
  EXPECT_EQ(copies_.Newest(kAll, &one)->keepers.at(StatePart{0, 0}), 2u);
  EXPECT_FALSE(copies_.Newest(kAll, &none).has_value());
}

// Bits would be the same, but nothing of an attempt that is over is believed without being known.
TEST_F(TwoProcesses, CopiesOfAnotherAttempt_AreNotMixedWithThePresentOnes) {
  Complete(3);
  copies_.End();
  EXPECT_FALSE(Keep(1, 9, {{0, 0}})) << "no attempt is there";
  copies_.Begin(plan_->graph, ReductionMode::kOrdered, kEpoch + 1, 3);
  EXPECT_FALSE(Keep(1, 9, {{0, 0}})) << "a zombie";
  EXPECT_TRUE(Keep(5, 3, {{0, 0}})) << "one with which the attempt begins is kept by its reader too";
  Keep(1, 5, {{0, 0}}, kEpoch + 1);
  EXPECT_EQ(copies_.Newest(kAll)->step, 3);
  EXPECT_EQ(copies_.Newest(kAll)->epoch, kEpoch);
  Complete(5, kEpoch + 1);
  EXPECT_EQ(copies_.TakeComplete(), 5);
  EXPECT_EQ(copies_.Newest(kAll)->epoch, kEpoch + 1);
  EXPECT_EQ(copies_.Keepers(), (std::set<SessionId>{1, 2}))
      << "older copies are gone, and process 5 kept no other";
}

TEST_F(TwoProcesses, DamagedCopies_AreForgotten) {
  Complete(3);
  Keep(1, 4, {{0, 0}, {1, 0}});
  copies_.Forget(4);
  EXPECT_EQ(copies_.Newest(kAll)->step, 3);
  copies_.Forget(3);
  EXPECT_FALSE(copies_.Newest(kAll).has_value());
}

}  // namespace
}  // namespace weft::run_copies_test
