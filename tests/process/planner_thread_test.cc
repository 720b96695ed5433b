#include "coordinator/shell/planner_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

namespace weft::planner_thread_test {
namespace {

using ::testing::HasSubstr;

// A planner that finishes a slow run only when it is told to.
class PlannerThreadTest : public ::testing::Test {
 protected:
  PlannerThreadTest() {
    planner_ = std::make_unique<PlannerThread>([this](const std::string& spec) {
      const bool slow = spec == "slow";
      return UnplannedRun{slow, [this, slow] {
                            if (slow) go_on_.Wait();
                            ++planned_;
                            return absl::StatusOr<std::shared_ptr<const RunPlan>>(nullptr);
                          }};
    });
  }
  Notification go_on_;
  std::atomic<int> planned_{0};
  std::unique_ptr<PlannerThread> planner_;
};

TEST_F(PlannerThreadTest, SlowRun_DoesNotHoldBackQuickOnes) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(planner_->Plan("slow", [](const auto&) {}));
  Notification quick;
  ASSERT_TRUE(planner_->Plan("quick", [&](const auto& plan) {
    EXPECT_TRUE(plan.ok());
    quick.Notify();
  }));
  quick.Wait();
  EXPECT_EQ(planned_, 1);
  go_on_.Notify();
}

TEST_F(PlannerThreadTest, TooManySlowRuns_AreRefused) {
  Notification refused;
  // One is being planned, eight wait, and the tenth is one too many.
  for (size_t i = 0; i < PlannerThread::kMaxSlowWaiting + 2; ++i) {
    ASSERT_TRUE(planner_->Plan("slow", [&](const auto& plan) {
      if (plan.status().code() != absl::StatusCode::kResourceExhausted) return;
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr("8 other runs of this size wait"));
      refused.Notify();
    }));
  }
  refused.Wait();
  go_on_.Notify();
  planner_.reset();  // two may be refused, and the second one's answer may still be on its way
}

TEST_F(PlannerThreadTest, Destroyed_AnswersWhatWaits) {
  std::atomic<int> answered{0};
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(planner_->Plan("slow", [&](const auto&) { ++answered; }));
  go_on_.Notify();
  planner_.reset();
  EXPECT_EQ(answered, 5);
}

}  // namespace
}  // namespace weft::planner_thread_test
