// Tests that the differences between a measured step and its plan add up to that of the makespans, and name
// what differs.
#include "schedules/explain/explanation.h"

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::explanation_test {
namespace {

Graph GraphOf(const std::string& family, const std::map<std::string, std::string>& parameters = {},
              int stages = 4, int microbatches = 8) {
  return Graph(WithoutTerms(*MakeSchedule(family, parameters, stages, microbatches)));
}

TimedSteps Timed(const Graph& graph, SimulationOptions options) {
  options.record_jobs = options.record_waits = true;
  const auto run = Simulate(graph, options);
  EXPECT_TRUE(run.ok()) << run.status();
  TimedSteps steps;
  for (const SimulatedJob& j : run->jobs) steps.jobs.push_back({j.job, j.rank, j.start, j.end});
  for (const IdleInterval& i : run->idle)
    steps.idle.push_back({i.rank, i.start, i.end, std::string(IdleCauseName(i.cause))});
  for (const TransferInterval& t : run->transfers)
    steps.transfers.push_back({t.from, t.to, t.tensor, t.consumer, t.start, t.end, t.bytes});
  return steps;
}

SimulationOptions Costs(double forward, double backward) {
  SimulationOptions options;
  options.duration[static_cast<int>(JobKind::kForward)] = {forward};
  options.duration[static_cast<int>(JobKind::kBackward)] = {backward};
  return options;
}

Explanation MustExplain(const Graph& graph, const TimedSteps& planned, const TimedSteps& measured) {
  const auto explanation = Explain(graph, planned, measured);
  EXPECT_TRUE(explanation.ok()) << explanation.status();
  double sum = 0;
  for (const Difference& d : explanation->differences) sum += d.seconds;
  EXPECT_NEAR(sum, explanation->measured - explanation->planned, 1e-9 * (1 + explanation->measured));
  return *explanation;
}

TEST(Explanation, RunAsPlanned_NamesNoDifference) {
  const Graph graph = GraphOf("1f1b");
  const TimedSteps plan = Timed(graph, Costs(1, 2));
  for (const Difference& d : MustExplain(graph, plan, plan).differences) EXPECT_EQ(d.seconds, 0) << d.cause;
}

TEST(Explanation, StageThatIsSlower_IsNamedWithItsRank) {
  const Graph graph = GraphOf("1f1b");
  SimulationOptions slow = Costs(1, 2);
  slow.duration[static_cast<int>(JobKind::kBackward)] = {2, 2, 3, 2};
  const Explanation explanation = MustExplain(graph, Timed(graph, Costs(1, 2)), Timed(graph, slow));
  ASSERT_FALSE(explanation.differences.empty());
  const Difference& largest = explanation.differences.front();
  EXPECT_EQ(largest.cause, "slower job");
  EXPECT_EQ(largest.stage, 2);
  EXPECT_EQ(largest.rank, 2);
  EXPECT_EQ(largest.kind, JobKind::kBackward);
  EXPECT_DOUBLE_EQ(largest.measured - largest.planned, largest.count);
}

TEST(Explanation, TransferThatThePlanHasShorter_IsLateByTheDifference) {
  const Graph graph = GraphOf("gpipe", {}, 2, 1);
  SimulationOptions planned = Costs(1, 2), measured = Costs(1, 2);
  planned.latency = 0.25;
  measured.latency = 0.75;
  const Explanation explanation = MustExplain(graph, Timed(graph, planned), Timed(graph, measured));
  EXPECT_DOUBLE_EQ(explanation.measured - explanation.planned, 1);
  double late = 0;
  for (const Difference& d : explanation.differences) late += d.cause == "transfer" ? d.seconds : 0;
  EXPECT_DOUBLE_EQ(late, 1) << "an activation and a gradient, half a unit each";
}

TEST(Explanation, JobThatStartsLateForNoRecordedReason_IsDispatch) {
  const Graph graph = GraphOf("gpipe", {}, 1, 2);
  const TimedSteps plan = Timed(graph, Costs(1, 2));
  TimedSteps measured = plan;
  for (DrawnJob& j : measured.jobs) {
    if (j.start < 2) continue;
    j.start += 0.5;
    j.end += 0.5;
  }
  measured.idle.clear();
  const Explanation explanation = MustExplain(graph, plan, measured);
  ASSERT_FALSE(explanation.differences.empty());
  EXPECT_EQ(explanation.differences.front().cause, "dispatch");
  EXPECT_DOUBLE_EQ(explanation.differences.front().seconds, 0.5);
}

TEST(Explanation, OtherSteps_AreComparedFromTheirFirstOn) {
  const Graph graph = GraphOf("1f1b");
  const TimedSteps plan = Timed(graph, Costs(1, 2));
  TimedSteps measured = plan;
  for (DrawnJob& j : measured.jobs) j.job.step += 7;
  EXPECT_EQ(MustExplain(graph, plan, measured).measured, MustExplain(graph, plan, plan).measured);
}

TEST(Explanation, JobsOfAnotherRun_AreRefusedWithTheJob) {
  const auto other = Explain(GraphOf("1f1b"), Timed(GraphOf("1f1b"), Costs(1, 2)),
                             Timed(GraphOf("1f1b", {}, 4, 9), Costs(1, 2)));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(other.status().message().find("micro-batch 8"), std::string::npos) << other.status();
}

// Explains runs of every family, with durations and transfers that are independent of the plan's.
TEST(Explanation, AnyRun_DifferencesAddUp) {
  std::mt19937 random(11);
  const auto between = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  const std::map<std::string, std::map<std::string, std::string>> families = {
      {"1f1b", {}},         {"gpipe", {}},      {"ddp", {}},
      {"fsdp", {}},         {"zb_h1", {}},      {"lpp", {{"groups", "2"}, {"ranks", "2"}}},
      {"v_min", {}},        {"dualpipe_v", {}}, {"fslpp", {{"groups", "2"}, {"ranks", "2"}}},
      {"pipedream_2bw", {}}};
  for (const auto& [family, parameters] : families) {
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE(absl::StrCat(family, ", ", i));
      const int stages = family == "v_min" || family == "dualpipe_v" ? 8 : 4;
      const int microbatches = family == "ddp" || family == "fsdp" ? 4 : 8;
      const Graph graph = GraphOf(family, parameters, stages, microbatches);
      SimulationOptions costs[2];
      for (SimulationOptions& of : costs) {
        of.steps = 2;
        for (auto& durations : of.duration) {
          durations.clear();
          for (int s = 0; s < stages; ++s) durations.push_back(between(0.5, 2));
        }
        of.activation = of.weight = {1};
        of.latency = between(0, 0.5);
      }
      MustExplain(graph, Timed(graph, costs[0]), Timed(graph, costs[1]));
    }
  }
}

}  // namespace
}  // namespace weft::explanation_test
