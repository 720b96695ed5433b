// Rows of actions as schedules: written and read back, by every family, and refused where they are unsound.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/drawing/drawing.h"
#include "schedules/families/families.h"
#include "schedules/simulator/actions.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_actions_test {
namespace {

using ::testing::HasSubstr;

SimulationResult MustSimulate(const Schedule& schedule, int steps) {
  EXPECT_TRUE(CheckSchedule(WithoutTerms(schedule)).ok()) << CheckSchedule(WithoutTerms(schedule));
  SimulationOptions options;
  options.steps = steps;
  options.record_jobs = true;
  auto run = Simulate(Graph(WithoutTerms(schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

std::string Actions(const Schedule& schedule, const SimulationResult& run) {
  if (!schedule.order.empty()) return ActionsOfOrder(schedule);
  std::vector<DrawnJob> jobs;
  for (const SimulatedJob& j : run.jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  DrawingOptions options;
  options.ranks = schedule.ranks;
  options.stages = schedule.stages;
  return DrawActions(jobs, options);
}

std::string Problem(const std::string& text) {
  const auto schedule = ScheduleFromActions(text);
  return std::string((schedule.ok() ? CheckSchedule(WithoutTerms(*schedule)) : schedule.status()).message());
}

// Rows say who computes and when; whose the weights are they do not.
TEST(Actions, EveryFamilyWrittenAndRead_RunsTheSameJobsAtTheSameTimes) {
  for (const Family& family : Families()) {
    for (const auto& [stages, microbatches, ranks] : {std::tuple{4, 8, 2}, std::tuple{8, 16, 4}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " S=", stages, " B=", microbatches));
      if (family.name == "pipedream") continue;  // has one micro-batch
      if (family.name == "cdp_mp") continue;     // its placement changes from step to step
      std::map<std::string, std::string> parameters;
      for (const FamilyParameter& p : family.parameters) {
        if (p.name == "groups") parameters["groups"] = "2";
        if (p.name == "ranks") parameters["ranks"] = absl::StrCat(ranks);
      }
      const auto written = MakeSchedule(family.name, parameters, stages, microbatches);
      ASSERT_TRUE(written.ok()) << written.status();
      const auto run = MustSimulate(*written, 1);
      const std::string text = Actions(*written, run);
      const auto read = ScheduleFromActions(text);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->stages, stages);
      EXPECT_EQ(read->microbatches, microbatches);
      EXPECT_EQ(read->ranks, written->ranks);
      const auto again = MustSimulate(*read, 1);
      EXPECT_EQ(Actions(*read, again), text);
      EXPECT_EQ(again.makespan, run.makespan);
      if (family.name == "fsdp" || family.name == "fslpp") continue;
      ASSERT_EQ(again.jobs.size(), run.jobs.size());
    }
  }
}

TEST(Actions, RunOfManySteps_WritesTheFirst) {
  const auto schedule = MakeSchedule("gpipe", {}, 2, 2);
  EXPECT_EQ(Actions(*schedule, MustSimulate(*schedule, 3)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
}

TEST(Actions, SpacesEmptyCellsAndCarriageReturns_AreSkipped) {
  const auto schedule = ScheduleFromActions("0F0, 0F1 ,,,0B0,,0B1\r\n\r\n,1F0,1F1,1B0,1B1,\r\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->ranks, 2);
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
}

TEST(Actions, WholeBackwardsAmongHalves_AreBothHalvesAtOnce) {
  const auto schedule = ScheduleFromActions("0F0,0F1,0B0,0I1,0W1\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(schedule->split_backward);
  const auto run = MustSimulate(*schedule, 1);
  EXPECT_EQ(Actions(*schedule, run), "0F0,0F1,0B0,0I1,0W1\n");
  EXPECT_EQ(run.makespan, 6);
}

TEST(Actions, OverlappedPair_RunsAtTheSameTime) {
  const auto schedule = ScheduleFromActions("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_FALSE(schedule->split_backward);
  const auto run = MustSimulate(*schedule, 1);
  EXPECT_EQ(run.makespan, 3);
  EXPECT_EQ(Actions(*schedule, run), "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  for (const char* bad :
       {"(0F1;0B0)", "(0F1)OVERLAP_F_B", "(0B0;0F1)OVERLAP_F_B", "(0F1;0W0)OVERLAP_F_B", "(;)OVERLAP_F_B",
        "()OVERLAP_F_B", "(0F1;0B0)OVERLAP", "(0F1,0B0)OVERLAP_F_B", "(0F1;0F2)OVERLAP_F_B"}) {
    EXPECT_THAT(Problem(absl::StrCat("0F0,", bad, ",0B1\n")), HasSubstr("row 1, cell 2")) << bad;
  }
}

TEST(Actions, StageOnTwoRanks_IsReplicated) {
  const auto schedule = ScheduleFromActions("0F0,0B0\n0F1,0B1\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok());
  EXPECT_TRUE(Graph(WithoutTerms(*schedule)).protocol(0).has_reduce());
}

TEST(Actions, BackwardInAnotherRow_FetchesTheForwardsWeightsAndStartsFromTheInput) {
  const auto schedule = ScheduleFromActions("0F0,0F1\n0B0,0B1\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const auto run = MustSimulate(*schedule, 2);
  EXPECT_EQ(Actions(*schedule, run), "0F0,0F1\n0B0,0B1\n");
  EXPECT_EQ(run.ranks[0].weight_fetches, 0);
  EXPECT_EQ(run.ranks[1].weight_fetches, 4);
  EXPECT_EQ(run.ranks[1].peak_activations, 1);
  EXPECT_FALSE(Graph(WithoutTerms(*schedule)).protocol(0).has_reduce());
  EXPECT_THAT(Problem("0F0,0I0\n0W0\n"), HasSubstr("its backward_input is on rank 0"));
}

TEST(Actions, RankWithoutJobs_KeepsItsRow) {
  const std::map<std::string, std::string> parameters = {{"workers", "3"}, {"compute", "2 * s"}};
  const auto written = MakeSchedule("custom", parameters, 2, 2);
  ASSERT_TRUE(written.ok()) << written.status();
  const auto run = MustSimulate(*written, 1);
  const std::string text = Actions(*written, run);
  EXPECT_EQ(text, "0F0,0F1,0B0,0B1\n,\n1F0,1B0,1F1,1B1\n");
  const auto read = ScheduleFromActions(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ranks, 3);
  EXPECT_EQ(Actions(*read, MustSimulate(*read, 1)), text);
}

// A trace has the jobs like this, where nobody says which were a pair.
TEST(Actions, BackwardThatStartsDuringTheForwardBeforeIt_IsWrittenAsItsPair) {
  const auto job = [](int microbatch, JobKind kind, double start, double end) {
    return DrawnJob{Job::Compute(3, 0, microbatch, kind), 0, start, end};
  };
  const std::vector<DrawnJob> jobs = {job(0, JobKind::kForward, 0, 1),
                                      job(1, JobKind::kForward, 1, 4),
                                      job(0, JobKind::kBackward, 2, 5),
                                      job(2, JobKind::kForward, 5, 6),
                                      job(1, JobKind::kBackward, 6, 7),
                                      job(2, JobKind::kBackward, 7, 8),
                                      {Job::Compute(4, 0, 0, JobKind::kForward), 0, 9, 10}};
  EXPECT_EQ(DrawActions(jobs, {}), "0F0,(0F1;0B0)OVERLAP_F_B,0F2,0B1,0B2\n");
}

// torch.distributed.pipelining lowers a schedule like this.
TEST(Actions, SendsAndReceives_AreSkipped) {
  const auto plain = ScheduleFromActions("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const auto lowered = ScheduleFromActions(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  ASSERT_TRUE(plain.ok() && lowered.ok()) << lowered.status();
  EXPECT_EQ(lowered->order, plain->order);
}

// The two orders of https://github.com/pytorch/pytorch/issues/172668, of 4 stages on 2 ranks, which hang with
// NCCL: each rank's send waits for a receive behind the other's send.
TEST(Actions, SendsAndReceivesThatHangElsewhere_AreRefusedWithTheCircle) {
  EXPECT_THAT(Problem("0SEND_F1,2RECV_F0,2F0\n1SEND_F0,1RECV_F1,1F1\n"),
              HasSubstr("in a circle: 0SEND_F1 (row 1, cell 1) needs 1RECV_F1, which comes behind 1SEND_F0; "
                        "1SEND_F0 (row 2, cell 1) needs 2RECV_F0, which comes behind 0SEND_F1. "));
  EXPECT_THAT(
      Problem("2SEND_F1,0F2,0SEND_F2,2RECV_B0,2B0\n3RECV_F1,3SEND_B0,3F1,3B1,1RECV_F2,3SEND_B1,1F2\n"),
      HasSubstr("in a circle: 0SEND_F2 (row 1, cell 3) needs 1RECV_F2, which comes behind 3SEND_B0; "
                "3SEND_B0 (row 2, cell 2) needs 2RECV_B0, which comes behind 0SEND_F2. "));
}

TEST(Actions, SendsAndReceivesOfAWholeSchedule_HangByTheirOrderAlone) {
  const std::string second =
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,1RECV_B0,1B0,1SEND_B0,"
      "3RECV_F1,3F1,3B1,3SEND_B1,1RECV_B1,1B1,1SEND_B1\n";
  const std::string rest =
      "2F0,2RECV_F1,2SEND_F0,2F1,2RECV_B0,2B0,2SEND_B0,0RECV_B0,0B0,2SEND_F1,2RECV_B1,2B1,2SEND_B1,"
      "0RECV_B1,0B1\n";
  EXPECT_THAT(Problem(absl::StrCat("0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,", rest, second)),
              HasSubstr("0SEND_F1 (row 1, cell 4) needs 1RECV_F1, which comes behind 1SEND_F0; "));
  // With the receive ahead of the send, as the thread's answer has it.
  EXPECT_EQ(Problem(absl::StrCat("0F0,0SEND_F0,0F1,2RECV_F0,0SEND_F1,", rest, second)), "");
  // Rows that leave ends out say nothing of what they wait for.
  EXPECT_EQ(Problem("0F0,0SEND_F0,0SEND_F0,0B0\n1F0,1B0,7RECV_F3\n"), "");
}

TEST(Actions, WhatIsNoComputeAction_IsNamedWithRowAndCell) {
  for (const char* bad :
       {"0SEND_X0", "SEND_F0", "0SEND_F", "UNSHARD", "0", "F0", "0F", "0X1", "-1F0", "0F-1",
        "0F0_REDUCE_GRAD", "(0F0;1B1)OVERLAP_F_B", "0F+1", "99999999999F0", "0F99999999999"}) {
    EXPECT_THAT(Problem(absl::StrCat("0F0,0B0\n1F0,", bad, "\n")), HasSubstr("row 2, cell 2")) << bad;
  }
}

TEST(Actions, RowsThatAreNoWholeSchedule_AreRefusedWithTheReason) {
  EXPECT_THAT(Problem(""), HasSubstr("no actions"));
  EXPECT_THAT(Problem("\n , ,\n"), HasSubstr("no actions"));
  EXPECT_THAT(Problem("0F0,0B0,1F1,1B1\n"), HasSubstr("no row has forward (step 0, stage 0, micro-batch 1)"));
  EXPECT_THAT(
      Problem("0F0,0F1,0B0\n"),
      HasSubstr("row 1 has forward (step 0, stage 0, micro-batch 1) in cell 2 and no row has its backward"));
  EXPECT_THAT(
      Problem("0F0,,0F0,0B0\n"),
      HasSubstr(
          "row 1, cell 3: forward (step 0, stage 0, micro-batch 0) stands twice; it is in row 1, cell 1"));
  EXPECT_THAT(Problem("0F0,0B0\n0F0\n"),
              HasSubstr("row 2, cell 1: forward (step 0, stage 0, micro-batch 0) stands twice"));
  EXPECT_THAT(Problem("0B0,0F0\n"), HasSubstr("cycle"));
  EXPECT_THAT(Problem("0F0,0I0\n"), HasSubstr("no row has its backward_weight"));
  EXPECT_THAT(Problem("0F0,0B0,0I0,0W0\n"), HasSubstr("twice"));
  EXPECT_THAT(Problem("900000F900000,0F0\n"), HasSubstr("more than"));
}

}  // namespace
}  // namespace weft::schedule_actions_test
