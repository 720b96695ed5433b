// Tests the work that a worker keeps until the coordinator has stored it (worker/core/unsettled_work.h,
// held_copies.h).
#include "worker/core/unsettled_work.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/held_copies.h"

namespace weft::unsettled_work_test {
namespace {

Assign TwoRanks() {
  Assign assign;
  assign.run = 1;
  assign.epoch = 4;
  assign.run_id = "id";
  assign.leases = {{2, {4, 7}}, {3, {4, 8}}};
  return assign;
}

Completions Done(Rank rank, int step, int jobs = 1) {
  Completions done{1, rank, {4, static_cast<uint64_t>(5 + rank)}, {}};
  for (int b = 0; b < jobs; ++b) done.jobs.push_back({Job::Compute(step, 0, b, JobKind::kForward), 1, 2});
  return done;
}

class UnsettledWorkOfTwoRanks : public ::testing::Test {
 protected:
  UnsettledWorkOfTwoRanks() { work_.Sent(Prepared{1}); }

  // Returns what is told, without the Reattach at its head, which is kept.
  std::vector<FromWorker> Told() {
    WorkerEffects effects;
    work_.Tell(&effects);
    std::vector<FromWorker> told;
    for (const WorkerEffect& e : effects) told.push_back(std::get<SendEffect>(e).message);
    reattach_ = std::get<Reattach>(told.front());
    told.erase(told.begin());
    return told;
  }
  // Returns how many jobs are told.
  size_t ToldJobs() {
    size_t jobs = 0;
    for (const FromWorker& m : Told()) {
      if (const auto* completions = std::get_if<Completions>(&m)) jobs += completions->jobs.size();
    }
    return jobs;
  }

  UnsettledWork work_{TwoRanks()};
  Reattach reattach_;
  WorkerEffects out_;
};

TEST_F(UnsettledWorkOfTwoRanks, Told_HasTokensCreditsAndGrants) {
  work_.Sent(Credit{1, 3, {4, 8}, 64});
  work_.Granted(3, 10);
  work_.Granted(3, 5);
  Told();
  EXPECT_EQ(reattach_.run, 1u);
  EXPECT_EQ(reattach_.epoch, 4u);
  EXPECT_EQ(reattach_.run_id, "id");
  ASSERT_EQ(reattach_.ranks.size(), 2u);
  EXPECT_EQ(reattach_.ranks[1].rank, 3);
  EXPECT_EQ(reattach_.ranks[1].token, (Token{4, 8}));
  EXPECT_EQ(reattach_.ranks[1].credit, 64);
  EXPECT_EQ(reattach_.ranks[1].granted, 15);
  EXPECT_EQ(reattach_.ranks[0].granted, 0);
}

TEST_F(UnsettledWorkOfTwoRanks, JobsOfSettledSteps_AreNotToldAgain) {
  for (int step = 0; step < 5; ++step) {
    work_.Sent(Done(2, step));
    work_.Sent(Done(3, step, 2));
  }
  EXPECT_EQ(ToldJobs(), 15u);
  work_.Settle({1, 4, 3, -1, -1});
  EXPECT_EQ(ToldJobs(), 6u);
  EXPECT_EQ(reattach_.ended, 3);
  work_.Sent(Done(2, 2));
  EXPECT_EQ(ToldJobs(), 6u) << "its step is settled";
  work_.Settle({1, 3, 5, -1, -1});
  EXPECT_EQ(ToldJobs(), 6u) << "that was said of another attempt";
}

TEST_F(UnsettledWorkOfTwoRanks, TooManyJobs_CannotBeToldBeforeTheyAreSettled) {
  for (size_t jobs = 0; jobs <= UnsettledWork::kMaxJobs; jobs += 1024) work_.Sent(Done(2, 9, 1024));
  EXPECT_FALSE(work_.can_return());
  work_.Sent(Done(2, 10));
  work_.Settle({1, 4, 9, -1, -1});
  EXPECT_FALSE(work_.can_return()) << "jobs of step 9 are missing";
  work_.Settle({1, 4, 10, -1, -1});
  EXPECT_TRUE(work_.can_return());
  EXPECT_EQ(ToldJobs(), 1u);
}

TEST_F(UnsettledWorkOfTwoRanks, TooManySteps_CannotBeToldEither) {
  for (int step = 0; step <= kMaxUnsettledSteps; ++step) work_.Sent(Done(2, step));
  EXPECT_FALSE(work_.can_return());
}

TEST(UnsettledWork, NotPrepared_CannotReturn) { EXPECT_FALSE(UnsettledWork(TwoRanks()).can_return()); }

TEST_F(UnsettledWorkOfTwoRanks, SnapshotAskedForTwice_IsTakenOnceAndAnsweredAgain) {
  EXPECT_TRUE(work_.Asked(TakeSnapshot{1, 6}, &out_));
  EXPECT_FALSE(work_.Asked(TakeSnapshot{1, 6}, &out_));
  EXPECT_TRUE(out_.empty()) << "the answer comes";
  work_.Sent(SnapshotSaved{1, 6, "full"});
  EXPECT_FALSE(work_.Asked(TakeSnapshot{1, 6}, &out_));
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(std::get<SnapshotSaved>(std::get<SendEffect>(out_[0]).message).failure, "full");
  EXPECT_EQ(Told().size(), 1u);
  ASSERT_EQ(reattach_.snapshots.size(), 1u);
  EXPECT_FALSE(reattach_.snapshots[0].seal);
  work_.Settle({1, 4, 0, 6, -1});
  EXPECT_TRUE(Told().empty());
  EXPECT_TRUE(reattach_.snapshots.empty());
}

TEST_F(UnsettledWorkOfTwoRanks, WeightsKeptAside_AreToldUntilTheirValidationIsSettled) {
  EXPECT_TRUE(work_.Asked(SealCheckpoint{1, 6, 2, false, true}, &out_));
  work_.Sent(CheckpointSealed{1, 6, ""});
  work_.Settle({1, 4, 6, 6, -1});
  Told();
  EXPECT_EQ(reattach_.validations, std::vector<int32_t>{6});
  EXPECT_TRUE(work_.Asked(Validate{1, 6}, &out_));
  EXPECT_FALSE(work_.Asked(Validate{1, 6}, &out_));
  work_.Sent(Validation{1, 6, 1, 2});
  EXPECT_TRUE(Told().empty()) << "it is not done";
  work_.Sent(Validation{1, 6, 2, 2});
  EXPECT_EQ(Told().size(), 1u);
  work_.Settle({1, 4, 6, 6, 6});
  EXPECT_TRUE(Told().empty());
  EXPECT_TRUE(reattach_.validations.empty());
}

TEST_F(UnsettledWorkOfTwoRanks, Failure_IsToldAgain) {
  work_.Sent(Failed{1, "the disk is full"});
  const std::vector<FromWorker> told = Told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(std::get<Failed>(told[0]).reason, "the disk is full");
}

TEST(HeldCopies, DroppedAndOfAnotherRun_AreNotTold) {
  HeldCopies copies;
  const Assign assign = TwoRanks();
  for (int step = 1; step < 4; ++step) copies.Note(CopiesHeld{1, 4, step, {{0, 0}}}, assign);
  copies.Note(CopiesHeld{1, 4, 3, {{1, 0}}}, assign);
  copies.Drop({1, 4, 3});
  WorkerEffects out;
  copies.Tell(&out);
  ASSERT_EQ(out.size(), 1u);
  const auto& held = std::get<CopiesHeld>(std::get<SendEffect>(out[0]).message);
  EXPECT_EQ(held.step, 3);
  EXPECT_EQ(held.parts.size(), 2u);
  EXPECT_EQ(held.run_id, "id");
  copies.BeginRun(2);
  EXPECT_TRUE(copies.empty());
}

}  // namespace
}  // namespace weft::unsettled_work_test
