// Tests the rows of weft compare --measure, made of the files of a short training.
#include "client/commands/measured_schedules.h"

#include <string>
#include <utility>
#include <vector>

#include "client/commands/contestants.h"
#include "client/commands/measured_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "run/run_schedule.h"

namespace weft::measured_schedules_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int kN = 4, kSteps = 3;
constexpr double kForward = 0.25, kActivationBytes = 1000;

RunSpec RunOf(const std::string& schedule) {
  const auto spec = ParseRunSpec(Json::parse(R"({
    "name": "r", "model": {"mlp": {"layers": 4, "width": 16, "inputs": 16, "classes": 10}},
    "data": {"idx": {"images": "i", "labels": "l"}}, "train": {"steps": 3, "batch": 8, "microbatches": 4},
    "stages": 4, "schedule": ")" + schedule + "\"}"));
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// A run of whose jobs the simulator said all: forwards of 0.25 s, backwards twice that.
MeasuredRun Measured(const RunSpec& run) {
  SimulationOptions options;
  options.steps = kSteps;
  options.record_jobs = true;
  options.duration[static_cast<int>(JobKind::kForward)] = {kForward};
  options.duration[static_cast<int>(JobKind::kBackward)] = {2 * kForward};
  const auto result = Simulate(Graph(*ScheduleOf(run)), options);
  EXPECT_TRUE(result.ok()) << result.status();
  MeasuredRun measured;
  measured.trace.measured = true;
  measured.trace.activation_bytes.assign(kN, kActivationBytes);
  measured.summary = {{"ranks", kN},
                      {"processes", 2},
                      {"steps", kSteps},
                      {"step_seconds", {{"p50", 9.5}, {"p99", 10}}},
                      {"predicted_step_seconds", result->period},
                      {"bytes_sent", {{"activation", 0}, {"gradient", 600}}},
                      {"peak_bytes", Json::array()},
                      {"peak_activations", Json::array()}};
  for (const RankStats& rank : result->ranks) {
    measured.summary["peak_bytes"].push_back(
        {{"weights", 100}, {"activations", kActivationBytes * rank.peak_activations}});
    measured.summary["peak_activations"].push_back(rank.peak_activations);
  }
  for (const SimulatedJob& j : result->jobs) measured.trace.jobs.push_back({j.job, j.rank, j.start, j.end});
  return measured;
}

TEST(MeasuredRow, RunThatWentAsSimulated_HasEqualFigures) {
  for (const char* schedule : {"ddp", "1f1b", "gpipe,rule=cdp_v2"}) {
    SCOPED_TRACE(schedule);
    const RunSpec run = RunOf(schedule);
    const auto row = RowOf(run, *ScheduleOf(run), Measured(run));
    ASSERT_TRUE(row.ok()) << row.status();
    EXPECT_EQ(row->peak_activations, row->simulated_peak_activations);
    EXPECT_EQ(row->live_activations, row->simulated_live_activations);
    EXPECT_DOUBLE_EQ(row->live_bytes, row->simulated_live_bytes);
    EXPECT_DOUBLE_EQ(row->live_bytes, kActivationBytes * row->live_activations);
    for (int r = 0; r < kN; ++r) {
      EXPECT_DOUBLE_EQ(row->simulated_activation_bytes[r], kActivationBytes * row->peak_activations[r]);
    }
    EXPECT_EQ(row->step_seconds, 9.5);
    EXPECT_THAT(row->sent_bytes, ElementsAre(std::pair<const std::string, double>("gradient", 200)))
        << "of one step, and nothing that was not sent";
    ASSERT_TRUE(row->communication.has_value());
    EXPECT_EQ(row->communication->most, std::string(schedule) == "ddp" ? 2 * (kN - 1) : 1);
  }
}

TEST(MeasuredRow, Ddp_HoldsAllOfAllAndSendsWhatItsRanksExchange) {
  const RunSpec run = RunOf("ddp");
  const auto row = RowOf(run, *ScheduleOf(run), Measured(run));
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->live_activations, kN * kN);
  EXPECT_THAT(row->simulated_weight_versions, Each(1));
  // Three layers of 16 x 17 numbers, one of 10 x 17.
  const double weights = 4.0 * (3 * 16 * 17 + 10 * 17);
  EXPECT_THAT(row->simulated_weight_bytes, Each(weights));
  EXPECT_DOUBLE_EQ(row->simulated_sent_bytes.at("gradient"), (kN - 1) * weights);
  EXPECT_DOUBLE_EQ(row->simulated_sent_bytes.at("gradient_sum"), (kN - 1) * weights);
}

TEST(MeasuredCosts, Durations_AreMeansByKindAndStage) {
  const RunSpec run = RunOf("1f1b");
  MeasuredRun measured = Measured(run);
  const SimulationOptions costs = MeasuredCosts(run, measured);
  EXPECT_THAT(costs.duration[static_cast<int>(JobKind::kForward)], Each(testing::DoubleNear(kForward, 1e-9)));
  EXPECT_THAT(costs.duration[static_cast<int>(JobKind::kBackward)],
              Each(testing::DoubleNear(2 * kForward, 1e-9)));
  EXPECT_THAT(costs.activation, Each(kActivationBytes));
  // A trace that does not tell leaves what is counted.
  measured.trace.activation_bytes.clear();
  EXPECT_THAT(MeasuredCosts(run, measured).activation, Each(testing::Gt(0)));
}

TEST(MeasuredTable, Rows_HaveFiguresOrAReason) {
  const RunSpec run = RunOf("1f1b");
  auto row = RowOf(run, *ScheduleOf(run), Measured(run));
  ASSERT_TRUE(row.ok()) << row.status();
  row->schedule = "1f1b";
  row->chosen = row->ran = true;
  MeasuredRow refused;
  refused.schedule = "pipedream";
  refused.reason = "it updates after every micro-batch";
  const std::string text = MeasuredTable(run, {"4 stages", kSteps, 1, 2}, {*row, refused});
  EXPECT_THAT(text,
              AllOf(HasSubstr("1f1b *"), HasSubstr("9.5 s"), HasSubstr("did not run\npipedream: it updates"),
                    HasSubstr("4 ranks on 2 cores: `dispatch` includes waiting for a core")));
  const auto json = MeasuredJson(run, {"", kSteps}, {*row, refused});
  ASSERT_EQ(json["schedules"].size(), 2u);
  EXPECT_EQ(json["schedules"][0]["rank_stats"][0]["peak_activations"], kN);
  EXPECT_EQ(json["schedules"][0]["rank_stats"][3]["peak_bytes"]["weights"], 100);
  // The run did not tell its versions: that is not zero.
  EXPECT_TRUE(json["schedules"][0]["rank_stats"][0]["peak_weight_versions"].is_null());
  EXPECT_EQ(json["schedules"][1]["ran"], false);
  EXPECT_EQ(json["schedules"][1]["reason"], "it updates after every micro-batch");
  EXPECT_THAT(MeasuredTable(run, {"", kSteps}, {refused}), Not(HasSubstr("peak by rank")));
}

// The run never told that rank's bytes: that is not zero.
TEST(MeasuredTable, RankWithoutItsBytes_IsUnknown) {
  const RunSpec run = RunOf("1f1b");
  auto row = RowOf(run, *ScheduleOf(run), Measured(run));
  ASSERT_TRUE(row.ok()) << row.status();
  row->ran = true;
  row->peak_bytes[2].clear();
  const std::string text = MeasuredTable(run, {"4 stages", kSteps, 1, 2}, {*row});
  EXPECT_THAT(text, AllOf(HasSubstr("100 B each; 1 rank unknown"), HasSubstr("1000 B; 1 rank unknown")));
  for (auto& classes : row->peak_bytes) classes.clear();
  EXPECT_THAT(MeasuredTable(run, {"4 stages", kSteps, 1, 2}, {*row}), Not(HasSubstr("unknown")));
}

TEST(MedianRow, SeveralTrainings_TheMiddleOneCountsAndKnowsAllTimes) {
  std::vector<MeasuredRow> repeats(3);
  repeats[0].step_seconds = 0.3;
  repeats[1].step_seconds = 0.1;
  repeats[2].step_seconds = 0.2;
  repeats[2].live_activations = 7;
  const MeasuredRow median = MedianRow(repeats);
  EXPECT_EQ(median.live_activations, 7);
  EXPECT_THAT(median.step_seconds_of_repeats, ElementsAre(0.1, 0.2, 0.3));
  EXPECT_THAT(MeasuredTable(RunOf("1f1b"), {"4 stages", kSteps, 3}, {[&] {
                              MeasuredRow row = median;
                              row.ran = true;
                              return row;
                            }()}),
              HasSubstr("100 ms - 300 ms"));
}

// A plan has a cut of its own, which is a part of what it promises.
TEST(Contestants, OwnScheduleThatTakesTheRanks_KeepsItsCut) {
  const RunSpec run = RunOf("ddp,ranks=2");
  ContestantOptions options;
  options.ranks = 2;
  for (const auto& contestants : {ContestantsToMeasure(run, options), ContestantsToPredict(run, options)}) {
    std::vector<int> own, others;
    for (const Contestant& c : contestants) {
      if (!c.chosen && c.schedule != "gpipe") continue;
      ASSERT_TRUE(c.run.ok()) << c.run.status();
      (c.chosen ? own : others).push_back(c.run->placed_stages());
    }
    EXPECT_THAT(own, ElementsAre(4));
    EXPECT_THAT(others, ElementsAre(2));
  }
  options.stages = 2;
  const auto cut = ContestantsToMeasure(run, options);
  ASSERT_TRUE(cut[0].chosen && cut[0].run.ok());
  EXPECT_EQ(cut[0].run->placed_stages(), 2) << "the user's own word";
}

TEST(SplitSchedules, Parameters_StayWithTheirSchedule) {
  EXPECT_THAT(SplitSchedules("ddp"), ElementsAre("ddp"));
  EXPECT_THAT(SplitSchedules("ddp,rule=cdp_v2,1f1b,lpp,groups=2,ranks=2"),
              ElementsAre("ddp,rule=cdp_v2", "1f1b", "lpp,groups=2,ranks=2"));
  EXPECT_THAT(SplitSchedules("custom,ranks=4,compute=s==1"), ElementsAre("custom,ranks=4,compute=s==1"));
  EXPECT_THAT(SplitSchedules("custom,ranks=4,compute=min(s,3),gpipe"),
              ElementsAre("custom,ranks=4,compute=min(s,3)", "gpipe"));
}

}  // namespace
}  // namespace weft::measured_schedules_test
