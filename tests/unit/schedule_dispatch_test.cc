// The dispatch of one rank and its tickets. Strict replay: the dispatch, the simulator and the claim order
// keep to fixed orders; unsound orders are refused.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/dispatch/dispatch.h"
#include "schedules/dispatch/gradient_turns.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_dispatch_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kUpdateFirst = -1000;

TEST(ReadyJobs, Greedy_TakesTheSmallestPriority) {
  ReadyJobs ready;
  ready.Add(5, 50, 0, true);
  ready.Add(3, 30, 0, true);
  EXPECT_EQ(ready.Take(), 30);
  EXPECT_EQ(ready.Take(), 50);
  EXPECT_EQ(ready.Take(), std::nullopt);
}

// Two stages on a rank that leave 10 and 30 bytes; their tickets go by micro-batch, then stage.
TEST(ReadyJobs, BudgetOfBytes_AdmitsInTheOrderOfTickets) {
  ReadyJobs ready({}, std::nullopt, Tickets(60, {0, 1}, {10, 30}));
  ready.Add(1, 100, 0, true, 0);  // micro-batch 0, stage 0
  ready.Add(2, 101, 0, true, 2);  // micro-batch 1, stage 0
  ready.Add(3, 102, 0, true, 4);
  EXPECT_EQ(ready.Take(), 100);
  EXPECT_EQ(ready.Take(), 101) << "50 bytes are promised: stage 1 of micro-batch 0 has its room";
  EXPECT_EQ(ready.Take(), std::nullopt) << "stage 1 of micro-batch 1 comes before, and does not fit";
  EXPECT_TRUE(ready.held_back());
  EXPECT_EQ(ready.HeldBack(), 102);
  ready.Add(9, 200, 1, true, 1);
  EXPECT_EQ(ready.Take(), 200);
  ready.Add(0, 201, 1, true, 3);
  EXPECT_EQ(ready.Take(), std::nullopt);
  ready.Release(1);
  EXPECT_EQ(ready.Take(), 201);
  ready.Release(0);
  EXPECT_EQ(ready.Take(), 102);
  EXPECT_EQ(ready.tickets()->bytes_out(), 50);
  EXPECT_TRUE(ready.empty());
}

TEST(ReadyJobs, StageMeasuredSmallerThanCounted_AdmitsMore) {
  ReadyJobs ready({}, std::nullopt, Tickets(100, {0}, {50}));
  for (int b = 0; b < 4; ++b) ready.Add(b, b, 0, true, b);
  EXPECT_EQ(ready.Take(), 0);
  EXPECT_EQ(ready.Take(), 1);
  EXPECT_EQ(ready.Take(), std::nullopt);
  ready.Measure(0, 33);
  EXPECT_EQ(ready.Take(), 2);
  EXPECT_EQ(ready.Take(), std::nullopt);
}

TEST(ReadyJobs, Replay_WaitsForTheNextPlace) {
  ReadyJobs ready({}, 0);
  ready.Add(1, 11, 0, true);
  EXPECT_EQ(ready.Next(), std::nullopt);
  EXPECT_EQ(ready.Take(), std::nullopt);
  EXPECT_FALSE(ready.held_back()) << "it waits for another job, not for memory";
  ready.Add(0, 10, 0, true);
  EXPECT_EQ(ready.Take(), 10);
  EXPECT_EQ(ready.Take(), 11);
  EXPECT_TRUE(ready.empty());
}

TEST(ReadyJobs, Replay_UpdatesGoFirstAndTakeNoPlace) {
  ReadyJobs ready({}, 0);
  ready.Add(0, 10, 0, true);
  ready.Add(2, 12, 0, true);
  ready.Add(kUpdateFirst, 99, 0, false);
  EXPECT_EQ(ready.Take(), 99);
  EXPECT_EQ(ready.Take(), 10);
  ready.Add(kUpdateFirst, 98, 0, false);
  EXPECT_EQ(ready.Take(), 98);
  EXPECT_EQ(ready.Take(), std::nullopt) << "place 1 has not come";
}

TEST(ReadyJobs, ReplayFromALaterPlace_BeginsThere) {
  ReadyJobs ready({}, 40);
  ready.Add(40, 1, 0, true);
  EXPECT_EQ(ready.Take(), 1);
}

TEST(ReadyJobs, ReplayOfAPair_GivesItsSecondBesideTheFirst) {
  ReadyJobs ready({}, 0);
  ready.Add(0, 10, 0, true);
  ready.Add(1, 11, 0, false, -1, true);
  ready.Add(2, 12, 0, true);
  EXPECT_EQ(ready.TakeOverlapped(), std::nullopt) << "the forward has not been taken";
  EXPECT_EQ(ready.Take(), 10);
  ready.Add(kUpdateFirst, 99, 0, false);
  EXPECT_EQ(ready.NextOverlapped(), 11) << "an update waits for an idle rank";
  EXPECT_EQ(ready.TakeOverlapped(), 11);
  EXPECT_EQ(ready.TakeOverlapped(), std::nullopt) << "the next forward is in no pair";
  EXPECT_EQ(ready.Take(), 99);
  EXPECT_EQ(ready.Take(), 12);
  EXPECT_TRUE(ready.empty());
}

TEST(ReadyJobs, ReplayOfAPairByOneThread_GivesItInTurn) {
  ReadyJobs ready({}, 0);
  ready.Add(1, 11, 0, false, -1, true);
  EXPECT_EQ(ready.Take(), std::nullopt);
  ready.Add(0, 10, 0, true);
  EXPECT_EQ(ready.Take(), 10);
  EXPECT_EQ(ready.Take(), 11);
}

TEST(ReadyJobs, Greedy_KnowsNoPairs) {
  ReadyJobs ready;
  ready.Add(5, 50, 0, false, -1, true);
  EXPECT_EQ(ready.TakeOverlapped(), std::nullopt);
  EXPECT_EQ(ready.Take(), 50);
}

TEST(ReadyJobs, ReplayWithALimit_HoldsTheNextForwardBack) {
  ReadyJobs ready({1}, 0);
  ready.Add(0, 10, 0, true);
  ready.Add(1, 11, 0, true);
  EXPECT_EQ(ready.Take(), 10);
  EXPECT_EQ(ready.Take(), std::nullopt);
  EXPECT_TRUE(ready.held_back());
  ready.Release(0);
  EXPECT_EQ(ready.Take(), 11);
}

// Room for one and a half tickets: of 30 bytes, which is the gradient's.
TEST(Tickets, GradientThatIsHandedOut_KeepsItsRoomUntilItIsTaken) {
  Tickets tickets(45, {0}, {20}, {30});
  EXPECT_TRUE(tickets.HandsOut(0));
  EXPECT_TRUE(tickets.Reach(0));
  EXPECT_FALSE(tickets.Reach(1));
  tickets.Return(0);
  EXPECT_EQ(tickets.bytes_out(), 30);
  EXPECT_FALSE(tickets.Reach(1));
  tickets.ReturnGradient(0);
  EXPECT_EQ(tickets.bytes_out(), 0);
  EXPECT_TRUE(tickets.Reach(1));
}

TEST(Tickets, ActivationsLargerThanTheGradient_GiveTheDifferenceBackWithTheBackward) {
  Tickets tickets(45, {0}, {40}, {10});
  EXPECT_TRUE(tickets.Reach(0));
  tickets.Measure(0, 35);
  EXPECT_EQ(tickets.bytes_out(), 35);
  EXPECT_FALSE(tickets.Reach(1));
  tickets.Return(0);
  EXPECT_EQ(tickets.bytes_out(), 10);
  EXPECT_TRUE(tickets.Reach(1)) << "beside the gradient of the first";
  tickets.ReturnGradient(0);
  EXPECT_EQ(tickets.bytes_out(), 35);
}

TEST(Tickets, MeasuredActivations_NeverMakeATicketSmallerThanItsGradient) {
  Tickets tickets(100, {0}, {40}, {30});
  EXPECT_TRUE(tickets.Reach(0));
  tickets.Measure(0, 5);
  EXPECT_EQ(tickets.bytes_out(), 30);
}

TEST(GradientTurns, GradientMadeEarly_IsTakenBehindThoseBeforeIt) {
  GradientTurns turns(4);
  std::vector<int> taken;
  const auto made = [&](int step, int microbatch) {
    taken.clear();
    turns.Made(step, 2, microbatch, [&](int of) { taken.push_back(of); });
    return taken;
  };
  EXPECT_TRUE(made(0, 1).empty());
  EXPECT_TRUE(made(0, 2).empty());
  EXPECT_EQ(made(1, 0), (std::vector<int>{0})) << "another step's";
  EXPECT_EQ(made(0, 0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(made(0, 3), (std::vector<int>{3}));
}

// Two micro-batches on one stage, in any order.
Schedule OneStage(std::vector<Job> order) {
  Schedule s = *MakeSchedule("gpipe", {}, 1, 2);
  s.order = {std::move(order)};
  return s;
}
Job F(int stage, int b) { return Job::Compute(0, stage, b, JobKind::kForward); }
Job B(int stage, int b) { return Job::Compute(0, stage, b, JobKind::kBackward); }

TEST(StrictReplay, OrderAgainstThePriorities_IsKeptInEveryStep) {
  const Schedule s = OneStage({F(0, 1), B(0, 1), F(0, 0), B(0, 0)});
  ASSERT_TRUE(CheckSchedule(WithoutTerms(s)).ok()) << CheckSchedule(WithoutTerms(s));
  SimulationOptions options;
  options.steps = 2;
  options.record_jobs = true;
  const auto run = Simulate(Graph(WithoutTerms(s)), options);
  ASSERT_TRUE(run.ok());
  std::vector<int> microbatches;
  for (const SimulatedJob& j : run->jobs) {
    if (HasMicrobatch(j.job.kind)) microbatches.push_back(j.job.microbatch);
  }
  EXPECT_EQ(microbatches, (std::vector<int>{1, 1, 0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(run->ranks[0].peak_activations, 1);
  const auto order = ClaimOrder(Graph(WithoutTerms(s)));
  ASSERT_TRUE(order.ok());
  EXPECT_EQ((*order)[0][0], (std::vector<Job>{F(0, 1), B(0, 1), F(0, 0), B(0, 0), Job::Update(0, 0, 0)}));
}

TEST(StrictReplay, FixedOrder_WaitsWhereTheGreedyRuleWouldNot) {
  // Stage 0 must do the backward of micro-batch 0 before the forward of micro-batch 1.
  Schedule s = *MakeSchedule("1f1b", {}, 2, 2);
  s.limit = nullptr;
  s.order = {{F(0, 0), B(0, 0), F(0, 1), B(0, 1)}, {F(1, 0), B(1, 0), F(1, 1), B(1, 1)}};
  ASSERT_TRUE(CheckSchedule(WithoutTerms(s)).ok()) << CheckSchedule(WithoutTerms(s));
  const auto run = Simulate(Graph(WithoutTerms(s)), {});
  ASSERT_TRUE(run.ok());
  EXPECT_DOUBLE_EQ(run->makespan, 8);
  EXPECT_EQ(run->ranks[0].peak_activations, 1);
}

std::string Problem(const Schedule& s) { return std::string(CheckSchedule(WithoutTerms(s)).message()); }

TEST(OrderCheck, MissingDoubledMisplacedOrUnknownJobs_AreNamed) {
  EXPECT_THAT(Problem(OneStage({F(0, 0), F(0, 1), B(0, 1)})),
              HasSubstr("rank 0 lacks backward (step 0, stage 0, micro-batch 0)"));
  EXPECT_THAT(Problem(OneStage({F(0, 0), F(0, 1), F(0, 0), B(0, 0), B(0, 1)})),
              HasSubstr("lists forward (step 0, stage 0, micro-batch 0) twice"));
  EXPECT_THAT(Problem(OneStage({F(0, 0), F(0, 2), B(0, 0)})), HasSubstr("not a compute job"));
  EXPECT_THAT(Problem(OneStage({Job::Compute(0, 0, 0, JobKind::kBackwardInput)})),
              HasSubstr("not a compute job"));
  EXPECT_THAT(Problem(OneStage({Job::Update(0, 0, 0)})), HasSubstr("not a compute job"));
  Schedule two = *MakeSchedule("gpipe", {}, 2, 1);
  two.order = {{F(1, 0), B(0, 0)}, {F(0, 0), B(1, 0)}};
  EXPECT_THAT(Problem(two), HasSubstr("which is on rank 1"));
  two.order = {{F(0, 0), B(0, 0)}};
  EXPECT_THAT(Problem(two), HasSubstr("each of the 2 ranks"));
}

TEST(OrderCheck, OrderAgainstTheGraph_NamesTheJobsOfTheCycle) {
  const std::string problem = Problem(OneStage({B(0, 0), F(0, 0), F(0, 1), B(0, 1)}));
  EXPECT_THAT(problem, HasSubstr("cycle"));
  EXPECT_THAT(problem, HasSubstr("forward (step 0, stage 0, micro-batch 0)"));
  EXPECT_THAT(problem, HasSubstr("backward (step 0, stage 0, micro-batch 0)"));
  EXPECT_THAT(problem, testing::Not(HasSubstr("micro-batch 1"))) << "those are behind the cycle, not on it";
}

TEST(OrderCheck, OrdersOfTwoRanksAgainstEachOther_NamesTheJobsOfTheCycle) {
  // Rank 0 wants the backward of 0 before the forward of 1; rank 1 the forward of 1 before the one of 0.
  Schedule s = *MakeSchedule("gpipe", {}, 2, 2);
  s.order = {{F(0, 0), B(0, 0), F(0, 1), B(0, 1)}, {F(1, 1), F(1, 0), B(1, 0), B(1, 1)}};
  const std::string problem = Problem(s);
  EXPECT_THAT(problem, HasSubstr("cycle"));
  EXPECT_THAT(problem, HasSubstr("forward (step 0, stage 1, micro-batch 1)"));
  EXPECT_THAT(problem, HasSubstr("comes in its rank's order after"));
}

TEST(OrderCheck, LimitThatTheOrderBreaks_IsADeadlock) {
  Schedule s = OneStage({F(0, 0), F(0, 1), B(0, 0), B(0, 1)});
  s.limit = [](Rank, int) -> std::optional<int> { return 1; };
  EXPECT_THAT(
      Problem(s),
      HasSubstr("deadlock: forward (step 0, stage 0, micro-batch 1) comes in the order of rank 0 while 1"));
}

}  // namespace
}  // namespace weft::schedule_dispatch_test
