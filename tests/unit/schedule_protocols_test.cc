// Tests what a rank does for a job, by the protocol of the job's stage.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "schedules/graph/graph.h"
#include "schedules/simulator/operation_rows.h"
#include "schedules/simulator/simulate.h"
#include "schedules/sync/catalogue.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_protocols_test {
namespace {

constexpr int kSteps = 6, kStep = 3;

RunSchedule Made(const std::string& name, const std::map<std::string, std::string>& parameters = {},
                 const std::string& rule = "sync") {
  absl::StatusOr<Schedule> schedule = MakeSchedule(name, parameters, 2, 2);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(ApplyRule(rule, name, &*schedule).ok());
  return WithoutTerms(*std::move(schedule));
}

RunSchedule Clipped(RunSchedule schedule) {
  schedule.terms.takes_norm = true;
  return schedule;
}

RunSchedule Collective(RunSchedule schedule) {
  schedule.terms.reduction = ReductionMode::kFast;
  return schedule;
}

std::string Words(const RunSchedule& schedule, const Job& job) {
  std::vector<Operation> operations;
  Graph(schedule, kSteps).Operations(job, &operations);
  return absl::StrJoin(operations, " ",
                       [](std::string* out, Operation o) { absl::StrAppend(out, OperationName(o)); });
}

Job Forward(int microbatch) { return Job::Compute(kStep, 0, microbatch, JobKind::kForward); }
Job Backward(int microbatch) { return Job::Compute(kStep, 0, microbatch, JobKind::kBackward); }
Job Reduce(int member) { return Job::Reduce(kStep, 0, member); }
Job Update(int member) { return Job::Update(kStep, 0, member); }

TEST(Operations, OfASingleHolder_AddGradientsWhereTheyAreMade) {
  const RunSchedule schedule = Made("gpipe");
  EXPECT_EQ(Words(schedule, Forward(0)), "forward");
  EXPECT_EQ(Words(schedule, Backward(0)), "backward");
  EXPECT_EQ(Words(schedule, Update(0)), "step");
}

TEST(Operations, OfSlicedSums_HandGradientsOut) {
  const RunSchedule schedule = Made("ddp");
  EXPECT_EQ(Words(schedule, Forward(1)), "forward");
  EXPECT_EQ(Words(schedule, Backward(1)), "backward hand_out_gradient");
  EXPECT_EQ(Words(schedule, Reduce(1)), "accumulate");
  EXPECT_EQ(Words(schedule, Update(1)), "step");
}

TEST(Operations, OfARelay_PassOnASumAndStepAtHomeAlone) {
  const RunSchedule schedule = Made("ddp", {}, "cdp_v1");
  EXPECT_EQ(Words(schedule, Backward(0)), "backward add_to_sum");
  EXPECT_EQ(Words(schedule, Update(0)), "install_weights");
  EXPECT_EQ(Words(schedule, Update(1)), "step");
}

TEST(Operations, OfShardsByWidth_GatherTheWeights) {
  const RunSchedule schedule = Made("fsdp", {{"shard", "width"}});
  EXPECT_EQ(Words(schedule, Forward(0)), "gather_weights forward");
  EXPECT_EQ(Words(schedule, Backward(0)), "gather_weights backward hand_out_gradient");
  EXPECT_EQ(Words(schedule, Update(0)), "accumulate step");
}

TEST(Operations, OfCollectives_AreJointOnes) {
  const RunSchedule copies = Collective(Made("ddp")), slices = Collective(Made("fsdp", {{"shard", "width"}}));
  EXPECT_EQ(Words(copies, Backward(0)), "backward");
  EXPECT_EQ(Words(copies, Reduce(0)), "all_reduce");
  EXPECT_EQ(Words(copies, Update(0)), "step");
  EXPECT_EQ(Words(slices, Forward(0)), "join_gather forward");
  EXPECT_EQ(Words(slices, Backward(0)), "join_gather backward");
  EXPECT_EQ(Words(slices, Reduce(0)), "reduce_scatter");
  EXPECT_EQ(Words(slices, Update(0)), "step");
}

// The route of stage 0: forward 0, backward 1 of the step before and its update, forward 1, backward 0.
TEST(Operations, OfAStateThatMigrates_TakeItUpAndSendItOn) {
  const RunSchedule schedule = Made("fsdp", {{"residency", "migrating"}}, "cdp_v1");
  EXPECT_EQ(Words(schedule, Job::Compute(0, 0, 0, JobKind::kForward)), "begin_state forward send_state");
  EXPECT_EQ(Words(schedule, Forward(0)), "forward send_state");
  EXPECT_EQ(Words(schedule, Backward(1)), "receive_state backward drop_version");
  EXPECT_EQ(Words(schedule, Update(0)), "step");
  EXPECT_EQ(Words(schedule, Forward(1)), "forward send_state");
  EXPECT_EQ(Words(schedule, Backward(0)), "receive_state backward");
}

TEST(Operations, WhereGradientsAreClipped_SumSquaresBeforeTheStep) {
  EXPECT_EQ(Words(Clipped(Made("gpipe")), Reduce(0)), "sum_squares");
  EXPECT_EQ(Words(Clipped(Made("gpipe")), Update(0)), "clipped_step");
  EXPECT_EQ(Words(Clipped(Made("ddp")), Reduce(1)), "accumulate sum_squares");
  EXPECT_EQ(Words(Clipped(Made("fsdp", {{"shard", "width"}})), Reduce(1)), "accumulate sum_squares");
  const RunSchedule relay = Clipped(Made("ddp", {}, "cdp_v1")), joint = Clipped(Collective(Made("ddp")));
  EXPECT_EQ(Words(relay, Reduce(1)), "sum_squares");
  EXPECT_EQ(Words(relay, Update(1)), "clipped_step");
  EXPECT_EQ(Words(relay, Update(0)), "install_weights");
  EXPECT_EQ(Words(joint, Reduce(0)), "all_reduce sum_squares")
      << "all have the same sum: the first one's counts";
  EXPECT_EQ(Words(joint, Reduce(1)), "all_reduce");
}

TEST(Operations, OfABackwardOnAnotherRank_RemakeTheForward) {
  const RunSchedule schedule = Made("custom", {{"ranks", "2"}, {"compute", "(s + (k == backward)) % W"}});
  EXPECT_EQ(Words(schedule, Forward(0)), "forward_only");
  EXPECT_EQ(Words(schedule, Backward(0)), "remake_forward backward hand_out_gradient");
}

// Returns the operations of each rank in a run of one step.
std::string Rows(const RunSchedule& schedule) {
  const Graph graph(schedule, 1);
  SimulationOptions options;
  options.record_jobs = true;
  const auto result = Simulate(graph, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? OperationRows(graph, result->jobs) : "";
}

TEST(OperationRows, OfAPipeline_AreItsActionsAndSteps) {
  EXPECT_EQ(Rows(WithoutTerms(*MakeSchedule("gpipe", {}, 2, 1))), "0F0,0B0,0STEP\n1F0,1B0,1STEP\n");
  EXPECT_EQ(Rows(WithoutTerms(*MakeSchedule("zb_h1", {}, 1, 1))), "0F0,0I0,0W0,0STEP\n");
}

TEST(OperationRows, OfSlicesAndJointSums_HaveTheWordsOfTorch) {
  const RunSchedule sliced = Made("fsdp", {{"shard", "width"}});
  EXPECT_THAT(Rows(sliced),
              ::testing::StartsWith("0UNSHARD,0F0,1UNSHARD,1F0,1UNSHARD,1B0,1HAND_OUT_GRADIENT0,"));
  EXPECT_THAT(Rows(sliced), ::testing::HasSubstr("0ACCUMULATE,0STEP\n"));
  const std::string joint = Rows(Collective(WithoutTerms(*MakeSchedule("ddp", {}, 1, 2))));
  EXPECT_EQ(joint, "0F0,0B0,0REDUCE_GRAD,0STEP\n0F1,0B1,0REDUCE_GRAD,0STEP\n");
}

TEST(OperationRows, OfARelay_NameWhoPassesAndWhoInstalls) {
  const std::string rows = Rows(Made("ddp", {}, "cdp_v2"));
  EXPECT_THAT(rows, ::testing::HasSubstr("ADD_TO_SUM0"));
  EXPECT_THAT(rows, ::testing::HasSubstr("1INSTALL_WEIGHTS"));
  EXPECT_THAT(rows, ::testing::Not(::testing::HasSubstr("0INSTALL_WEIGHTS")))
      << "stage 0 is installed late, and the run begins with what its first step would install";
}

TEST(SyncCatalogue, EveryName_StandsForTheChoiceOfThatName) {
  for (const std::string& name : SyncNames()) {
    const auto sync = SyncOfName(name, 3);
    ASSERT_TRUE(sync.ok()) << sync.status();
    EXPECT_EQ((*sync)->name(), name);
    EXPECT_EQ(WithCollectives(*sync)->name(), name);
  }
  EXPECT_EQ(SyncOfName("rely", 3).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace weft::schedule_protocols_test
