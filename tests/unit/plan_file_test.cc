// Plans as files: what a profile becomes, and that the schedule of a plan does what the plan says.
#include "client/planning/plan_file.h"

#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/files/schedule_file.h"
#include "client/planning/plan_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "schedules/check/check.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/small_run_spec.h"

namespace weft::plan_file_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Part {
  double forward, backward, activation, weight = 0;
};

Profile ProfileFrom(const std::vector<Part>& parts) {
  Profile profile;
  for (const Part& part : parts) {
    ProfilePart layer;
    layer.forward = part.forward;
    layer.backward = part.backward;
    layer.activation_bytes = layer.output_bytes = part.activation;
    layer.weight_bytes = part.weight;
    profile.parts.push_back(layer);
  }
  return profile;
}

PlanReport MustPlan(const Profile& profile, int ranks, double memory, int batches = 1) {
  const auto ticked = ChainOf(profile, ranks, memory);
  EXPECT_TRUE(ticked.ok()) << ticked.status();
  PlacementSearchOptions options;
  options.batches = batches;
  PlanReport report;
  report.source = "layers.json";
  report.ranks = ranks;
  report.pattern = FindPlan(ticked->chain, options);
  report.choice.schedule = ScheduleOfPlan(*report.pattern);
  report.choice.layers_of_stage = report.pattern->stage_layers;
  report.pipedream = *FindContiguousPlan(ticked->chain, true);
  report.ticks_per_unit = ticked->ticks_per_unit;
  report.peak_bytes.assign(report.pattern->peak_bytes.begin(), report.pattern->peak_bytes.end());
  return report;
}

// The plan's schedule in the simulator, one step.
SimulationResult MustRun(const Profile& profile, const Plan& plan, int microbatches) {
  const int stages = static_cast<int>(plan.stage_layers.size());
  const auto schedule = MakeSchedule(ScheduleOfPlan(plan), stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(CheckSchedule(*schedule).ok()) << CheckSchedule(*schedule);
  SimulationOptions options;
  EXPECT_TRUE(ApplyProfile(profile, stages, plan.stage_layers, &options).ok());
  auto result = Simulate(Graph(*schedule), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

const std::vector<Part>& FourLayers() {
  static const auto* parts = new std::vector<Part>{{3, 3, 1}, {2, 2, 2}, {2, 2, 2}, {2, 2, 4}};
  return *parts;
}

TEST(PlanFile, FourLayersWithFourBytes_SaysThePublishedPeriodAsProven) {
  const Json json = PlanJson(MustPlan(ProfileFrom(FourLayers()), 4, 4));
  EXPECT_EQ(json["schedule"], "periodic");
  EXPECT_EQ(json["k"], 1);
  EXPECT_EQ(json["period"], 8.0);
  EXPECT_EQ(json["lower_bound"], 8.0);
  EXPECT_EQ(json["optimal"], true);
  EXPECT_EQ(json["stages"], Json({1, 1, 1, 1}));
  EXPECT_EQ(json["rank_of_stage"], Json({0, 1, 2, 3}));
  EXPECT_EQ(json["fits"], true);
  for (const double bytes : json["peak_bytes"]) EXPECT_LE(bytes, 4);
}

TEST(PlanFile, TwoMicrobatchesAWindow_AreSix) {
  PlanReport report = MustPlan(ProfileFrom(FourLayers()), 4, 4, 2);
  report.step = 12;
  EXPECT_EQ(PlanJson(report)["period"], 6.0);
  EXPECT_THAT(PlanTable(report), HasSubstr("6 a micro-batch, 2 in a window"));
  // The step of a pattern alone is its window, and so is the bound beside it.
  const Json json = PlanJson(report);
  EXPECT_EQ(json["step_lower_bound"], 2 * json["lower_bound"].get<double>());
  EXPECT_THAT(PlanYaml(report), HasSubstr(absl::StrFormat("\n  step: 12\n  lower_bound: %.9g\n",
                                                          json["step_lower_bound"].get<double>())));
}

TEST(PlanFile, PlanOfFewerRanksThanWereBusy_SaysSoInItsLine) {
  PlanReport report = MustPlan(ProfileFrom(FourLayers()), 4, 4);
  for (const int timed : {0, 4}) {
    report.timed_ranks = timed;
    EXPECT_THAT(PlanLine(report), ::testing::Not(HasSubstr("busy"))) << timed;
  }
  report.timed_ranks = 16;
  EXPECT_THAT(PlanLine(report),
              ::testing::EndsWith("; jobs were timed with 16 ranks busy, and with 4 they may take less"));
}

// Transfers do not say how finely the times of layers count.
TEST(PlanFile, LinksThatAreFarSlowerThanLayers_LeaveTheTimesOfLayers) {
  Profile profile = ProfileFrom({{0.0012345, 0.0023456, 500}, {0.0034567, 0.0045678, 500}});
  double work = 0;
  for (const ProfilePart& part : profile.parts) work += part.forward + part.backward;
  for (const double bandwidth : {1e3, 1e-3, 1e-30}) {
    profile.bandwidth = bandwidth;
    const Json json = PlanJson(MustPlan(profile, 2, 0));
    EXPECT_NEAR(json["period"], work, 1e-5 * work) << bandwidth;
    EXPECT_EQ(json["stages"], Json({2})) << bandwidth;
  }
}

TEST(PlanFile, TransferBeyondTheCountedTicks_IsSeen) {
  Profile profile = ProfileFrom({{1.1, 1.3, 1, 10}, {1.7, 1.9, 1, 10}});
  for (const auto& [bandwidth, capped] : {std::pair(1.0, false), std::pair(1e-10, true)}) {
    profile.bandwidth = bandwidth;
    const auto ticked = ChainOf(profile, 2, 15);
    ASSERT_TRUE(ticked.ok()) << ticked.status();
    const auto apart = FindPlan(ticked->chain, {});
    ASSERT_TRUE(apart.has_value());
    EXPECT_EQ(HasCappedTransfer(ticked->chain, *apart), capped) << bandwidth;
    const auto alone = FindPlan(ChainOf(profile, 1, 0)->chain, {});
    EXPECT_FALSE(HasCappedTransfer(ticked->chain, *alone));
  }
}

TEST(PlanFile, TimesOfATrillionthOfTheUnit_AreTheirOwn) {
  const Json json = PlanJson(MustPlan(ProfileFrom({{1e-12, 2e-12, 1}, {1e-12, 2e-12, 1}}), 2, 0));
  EXPECT_NEAR(json["period"].get<double>(), 3e-12, 1e-16);
}

TEST(PlanFile, NeighboursOnARank_AreOneStage) {
  const PlanReport report = MustPlan(ProfileFrom({{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}), 2, 0);
  EXPECT_THAT(report.pattern->stage_layers, ElementsAre(2, 2));
  EXPECT_THAT(report.pattern->rank_of_stage, ElementsAre(0, 1));
}

// Each rank keeps its activation, and a copy of the input and of its output's gradient for each neighbour.
TEST(PlanFile, CopiesBetweenRanks_AreKeptWithTheActivations) {
  Profile profile = ProfileFrom({{2, 2, 10}, {2, 2, 10}, {2, 2, 10}});
  const auto in_place = ChainOf(profile, 3, 0);
  for (ProfilePart& part : profile.parts) part.copied_bytes = 4;
  const auto copied = ChainOf(profile, 3, 0);
  ASSERT_TRUE(in_place.ok() && copied.ok());
  const auto kept = [](const TickedChain& ticked, const Placement& placement) {
    std::vector<int64_t> bytes;
    for (const auto& hold : PlaceChain(ticked.chain, placement, 1).problem.holds) bytes.push_back(hold.bytes);
    return bytes;
  };
  EXPECT_EQ(kept(*in_place, {0, 1, 2}), (std::vector<int64_t>{10, 10, 10}));
  EXPECT_EQ(kept(*copied, {0, 1, 2}), (std::vector<int64_t>{14, 18, 14}));
  EXPECT_EQ(kept(*copied, {0, 0, 1}), (std::vector<int64_t>{10, 14, 14}))
      << "neighbours on a rank copy nothing";
}

TEST(PlanFile, LayersThatTakeNoTimeBackwards_GiveASchedule) {
  // Large weights pair a short layer with a long one.
  const Profile profile = ProfileFrom({{1, 0, 0, 2}, {1, 0, 0, 2}, {5, 0, 0, 3}, {5, 0, 0, 1}, {5, 0, 0, 1}});
  const PlanReport report = MustPlan(profile, 4, 3);
  EXPECT_EQ(PlanJson(report)["period"], 6.0);
  const double longer = MustRun(profile, *report.pattern, 60).makespan;
  EXPECT_NEAR((longer - MustRun(profile, *report.pattern, 30).makespan) / 30, 6, 1e-9);
}

TEST(PlanFile, RandomProfiles_RunWithThePeriodAndTheBytesOfThePlan) {
  uint64_t state = 3;
  const auto draw = [&](int from, int to) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state >> 33) % (to - from + 1));
  };
  for (int round = 0; round < 25; ++round) {
    std::vector<Part> parts;
    for (int l = draw(2, 5); l > 0; --l) {
      parts.push_back({0.25 * draw(1, 8), 0.5 * draw(1, 8), 1.0 * draw(1, 4), 1.0 * draw(0, 2)});
    }
    const Profile profile = ProfileFrom(parts);
    const int batches = draw(1, 2);
    const PlanReport report = MustPlan(profile, draw(1, 3), 30, batches);
    const Plan& plan = *report.pattern;
    const SimulationResult shorter = MustRun(profile, plan, 40), longer = MustRun(profile, plan, 80);
    const double period = (longer.makespan - shorter.makespan) / 40;
    const double planned = static_cast<double>(plan.pattern.period) / report.ticks_per_unit / batches;
    EXPECT_LE(period, planned + 1e-9) << "round " << round;
    if (plan.proven()) {
      EXPECT_GE(period, planned - 1e-9) << "round " << round;
    }
    for (size_t rank = 0; rank < longer.ranks.size(); ++rank) {
      const RankStats& stats = longer.ranks[rank];
      EXPECT_EQ(stats.peak_activation_bytes + stats.held_bytes, plan.peak_bytes[rank]) << "round " << round;
    }
  }
}

class PlanInRunFile : public testing::Test {
 protected:
  PlanInRunFile() : folder_(testing::TempDir()) {}
  absl::Status Embed(const std::string& plan, Json& run) {
    std::ofstream(absl::StrCat(folder_, "/plan.yaml")) << plan;
    return EmbedPlan(folder_, run).status();
  }
  const std::string folder_;
};

TEST_F(PlanInRunFile, PlanOfAFile_GivesScheduleAndStages) {
  const PlanReport report = MustPlan(ProfileFrom(FourLayers()), 4, 4);
  Json run = {{"schedule", {{"file", "plan.yaml"}, {"reduction", "fast"}}}};
  ASSERT_TRUE(Embed(PlanYaml(report), run).ok());
  EXPECT_EQ(run["stages"], Json({1, 1, 1, 1}));
  EXPECT_EQ(run["schedule"]["periodic"]["placement"], "0+1+2+3");
  EXPECT_EQ(run["schedule"]["reduction"], "fast");
  const auto read = ReadScheduleFile(absl::StrCat(folder_, "/plan.yaml"), {0, 8, {}, -1});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->scheme.stages, 4);
}

TEST_F(PlanInRunFile, MeasuredBuffers_GoWithThePlan) {
  PlanReport report = MustPlan(ProfileFrom(FourLayers()), 4, 4);
  report.buffers = MeasuredBuffers{4, 640, std::vector<LayerBuffers>(4, {.forward = 64, .between = 128})};
  Json run = {{"schedule", {{"file", "plan.yaml"}}}};
  ASSERT_TRUE(Embed(PlanYaml(report), run).ok());
  EXPECT_EQ(run["buffers"], ToJson(*report.buffers));
  Json taken = Json::object();
  TakePlan(PlanKeys(report), taken);
  EXPECT_EQ(taken["buffers"], run["buffers"]);
  Json own = {{"schedule", {{"file", "plan.yaml"}}}, {"buffers", "own.json"}};
  ASSERT_TRUE(Embed(PlanYaml(report), own).ok());
  EXPECT_EQ(own["buffers"], "own.json");
  TakePlan(PlanKeys(report), own);
  EXPECT_EQ(own["buffers"], "own.json") << "by --plan as by the run file";
}

TEST_F(PlanInRunFile, ReductionOfThePlan_GoesBeforeTheRunFiles) {
  PlanReport report = MustPlan(ProfileFrom(FourLayers()), 4, 4);
  report.of_run = false;
  EXPECT_THAT(PlanYaml(report), ::testing::Not(HasSubstr("reduction"))) << "a profile knows none";
  EXPECT_FALSE(PlanKeys(report)["schedule"].contains("reduction"));
  report.of_run = true;
  EXPECT_THAT(PlanYaml(report), HasSubstr("\n  reduction: ordered\n"));
  Json run = {{"schedule", {{"1f1b", Json::object()}, {"reduction", "fast"}}}};
  TakePlan(PlanKeys(report), run);
  EXPECT_EQ(run["schedule"]["reduction"], "ordered");
  run = {{"schedule", {{"1f1b", Json::object()}, {"reduction", "fast"}}}};
  TakePlan({{"schedule", {{"gpipe", Json::object()}}}, {"stages", {2, 2}}}, run);
  EXPECT_EQ(run["schedule"]["reduction"], "fast") << "the plan says none";
}

TEST_F(PlanInRunFile, StepInSeconds_IsTheSchedulesPlannedOne) {
  const std::string plan = "schedule: 1f1b\nstages: [1]\nmicrobatches: 4\nplan: {step: 0.25, unit: ";
  Json run = {{"schedule", {{"file", "plan.yaml"}}}};
  ASSERT_TRUE(Embed(plan + "s}\n", run).ok());
  EXPECT_EQ(run["schedule"]["planned_step"], 0.25);
  run = {{"schedule", {{"file", "plan.yaml"}}}};
  ASSERT_TRUE(Embed(plan + "units}\n", run).ok());
  EXPECT_FALSE(run["schedule"].contains("planned_step"));
}

TEST_F(PlanInRunFile, OtherStages_AreRefused) {
  Json run = {{"schedule", {{"file", "plan.yaml"}}}, {"stages", {2, 2}}};
  const absl::Status refused = Embed(PlanYaml(MustPlan(ProfileFrom(FourLayers()), 4, 4)), run);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("stages of [1,1,1,1], and the run file says [2,2]"));
}

TEST_F(PlanInRunFile, PlanForAnotherModel_IsRefused) {
  const auto run = ParseRunSpec(GptRun());
  ASSERT_TRUE(run.ok()) << run.status();
  PlanReport report = MustPlan(ProfileFrom(FourLayers()), 4, 4);
  const auto check = [&] {
    Json file = {{"schedule", {{"file", "plan.yaml"}}}};
    std::ofstream(absl::StrCat(folder_, "/plan.yaml")) << PlanYaml(report);
    const auto plan = EmbedPlan(folder_, file);
    return plan.ok() ? CheckPlanOfModel(*plan, *run) : plan.status();
  };
  EXPECT_TRUE(check().ok()) << "it does not say for which";
  report.weight_bytes = WeightBytesOf(*run);
  EXPECT_TRUE(check().ok()) << check();
  report.weight_bytes += 4;
  EXPECT_THAT(std::string(check().message()), HasSubstr("plan.yaml is for another model: its weights have"));
}

// Without the number, nothing would compare the models.
TEST_F(PlanInRunFile, WeightsThatAreNoBytes_AreRefused) {
  for (const char* weights : {"x", "0", "-4", "[4]", ""}) {
    const auto plan = ParsePlan(
        "plan.yaml", absl::StrCat("schedule: 1f1b\nstages: [1]\nplan:\n  weight_bytes: ", weights, "\n"));
    EXPECT_THAT(std::string(plan.status().message()),
                HasSubstr("plan.yaml:4: plan.weight_bytes: must be the bytes of the model's weights, not "))
        << weights;
  }
}

TEST_F(PlanInRunFile, FileThatIsNoPlan_IsRefused) {
  Json run = {{"schedule", {{"file", "plan.yaml"}}}};
  EXPECT_THAT(std::string(Embed("schedule: 1f1b\n", run).message()), HasSubstr("plan.yaml is no plan"));
  run = {{"schedule", {{"file", "missing.yaml"}}}};
  EXPECT_FALSE(EmbedPlan(folder_, run).ok());
}

TEST_F(PlanInRunFile, RowsOfActions_AreLeftAlone) {
  Json run = {{"schedule", {{"file", "rows.csv"}}}};
  EXPECT_TRUE(EmbedPlan(folder_, run).ok());
  EXPECT_EQ(run["schedule"]["file"], "rows.csv");
}

// Nobody waits for a gradient of the data.
TEST(ApplyProfile, FirstStageOfLayers_ComputesNothingInBackwardInput) {
  Profile profile = ProfileFrom({{1, 2, 1}, {1, 2, 1}, {1, 2, 1}});
  for (ProfilePart& part : profile.parts) part.backward_input = 1.25, part.backward_weight = 0.75;
  SimulationOptions options;
  ASSERT_TRUE(ApplyProfile(profile, 2, {2, 1}, &options).ok());
  EXPECT_THAT(options.duration[static_cast<int>(JobKind::kBackwardInput)], ElementsAre(0, 1.25));
  EXPECT_THAT(options.duration[static_cast<int>(JobKind::kBackwardWeight)], ElementsAre(4, 0.75));
  EXPECT_THAT(options.duration[static_cast<int>(JobKind::kBackward)], ElementsAre(4, 2));
  profile.of_stages = true;  // its halves were measured as they are
  ASSERT_TRUE(ApplyProfile(profile, 3, {}, &options).ok());
  EXPECT_THAT(options.duration[static_cast<int>(JobKind::kBackwardInput)], ElementsAre(1.25, 1.25, 1.25));
}

TEST(ApplyProfile, SumsAndColdMicrobatches_AddUpOverTheLayersOfAStage) {
  Profile profile = ProfileFrom({{1, 2, 1}, {1, 2, 1}, {1, 2, 1}});
  profile.parts[0].accumulate = 0.5, profile.parts[1].accumulate = 0.25, profile.parts[2].cold = 0.125;
  SimulationOptions options;
  ASSERT_TRUE(ApplyProfile(profile, 2, {2, 1}, &options).ok());
  EXPECT_THAT(options.accumulate, ElementsAre(0.75, 0));
  EXPECT_THAT(options.cold, ElementsAre(0, 0.125));
}

// On one rank nothing waits, and the bound is the step.
TEST(LeastStep, OneRank_HasAllWorkAndTheColdMicrobatchOfEachLayer) {
  PlanSource source;
  source.profile = ProfileFrom({{1, 2, 1}, {1, 2, 1}});
  source.profile.parts[1].cold = 0.5;
  source.microbatches = 4;
  EXPECT_DOUBLE_EQ(LeastStep(source, 1, 4), 4 * 6 + 0.5);
  source.profile.dispatch = 0.25;
  EXPECT_DOUBLE_EQ(LeastStep(source, 1, 4), 4 * (6 + 2 * 0.25) + 0.5)
      << "a micro-batch has two jobs at least";
  source.profile.dispatch = 0;
  SimulationOptions options;
  ASSERT_TRUE(ApplyProfile(source.profile, 2, {1, 1}, &options).ok());
  ScheduleSpec spec;
  spec.name = "lpp";
  spec.parameters = {{"groups", "1"}, {"ranks", "1"}};
  const auto run = Simulate(Graph(*MakeSchedule(spec, 2, 4)), options);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_DOUBLE_EQ(run->makespan, 4 * 6 + 0.5);
}

// Behind the first steps each rank works all the time, on another step than the ranks behind it.
TEST(LeastStep, StepsThatOverlap_AreNotBoundByTheWayOfOneMicrobatch) {
  PlanSource source;
  source.profile = ProfileFrom({{1, 2, 1}, {1, 2, 1}, {1, 2, 1}, {1, 2, 1}});
  for (ProfilePart& part : source.profile.parts) part.backward_input = part.backward_weight = 1;
  source.microbatches = 1;
  EXPECT_DOUBLE_EQ(LeastStep(source, 4, 1), 4 + 3);
  EXPECT_DOUBLE_EQ(LeastStep(source, 4, 1, /*steps_overlap=*/true), 3);
  SimulationOptions options;
  ASSERT_TRUE(ApplyProfile(source.profile, 4, {1, 1, 1, 1}, &options).ok());
  options.steps = 40;
  ScheduleSpec spec;
  spec.name = "pipedream";
  const auto run = Simulate(Graph(*MakeSchedule(spec, 4, 1)), options);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_LT(run->period, 7);
  EXPECT_GE(run->period, 3);
}

// token (tied), embedding, block0 to block3, head
RunSpec TiedRun() {
  auto run = ParseRunSpec({{"name", "tied"},
                           {"model", {{"gpt", {{"layers", 4}, {"tied", true}}}}},
                           {"data", {{"text", {{"path", "text.txt"}}}}},
                           {"train", {{"steps", 1}, {"batch", 8}, {"microbatches", 4}}},
                           {"stages", 3},
                           {"schedule", "1f1b"}});
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

std::vector<double> ForwardsFor(const Profile& profile, const RunSpec& run) {
  const auto of_run = ProfileFor(profile, run);
  EXPECT_TRUE(of_run.ok()) << of_run.status();
  std::vector<double> forwards;
  for (const ProfilePart& part : of_run->parts) forwards.push_back(part.forward);
  return forwards;
}

Profile OfOneSample(int parts) {
  Profile profile = ProfileFrom(std::vector<Part>(parts, {1, 2, 1}));
  profile.samples = 1;
  return profile;
}

TEST(ProfileFor, TiedLayer_TakesTheSameForAnyNumberOfSamples) {
  const Profile of_layers = OfOneSample(7);
  EXPECT_THAT(ForwardsFor(of_layers, TiedRun()), ElementsAre(1, 2, 2, 2, 2, 2, 2));
  EXPECT_EQ(ProfileFor(of_layers, TiedRun())->parts[0].output_bytes, 1);
  EXPECT_EQ(ProfileFor(of_layers, TiedRun())->parts[1].output_bytes, 2);
}

TEST(ProfileFor, StagesOfATiedRun_MayLeaveOutTheTiedOne) {
  const RunSpec run = TiedRun();
  ASSERT_EQ(run.stages(), 4);
  Profile of_stages = OfOneSample(3);
  of_stages.of_stages = true;
  EXPECT_THAT(ForwardsFor(of_stages, run), ElementsAre(0, 2, 2, 2));
  of_stages = OfOneSample(4);
  of_stages.of_stages = true;
  EXPECT_THAT(ForwardsFor(of_stages, run), ElementsAre(1, 2, 2, 2));
  of_stages.parts.resize(2);
  EXPECT_EQ(ProfileFor(of_stages, run).status().message(), "the profile is of 2 stages, not of 3");
}

RunSchedule Pipeline(int stages) {
  ScheduleSpec spec;
  spec.name = "1f1b";
  auto schedule = MakeSchedule(spec, stages, 4);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

std::vector<double> ForwardsOf(const SimulationOptions& costs) {
  return costs.duration[static_cast<int>(JobKind::kForward)];
}

TEST(ApplyToSchedule, TiedParameter_IsAStageBesideTheFirst) {
  Profile profile = OfOneSample(7);
  profile.parts[0].readers = {1, 6};
  for (const std::vector<int>& cut : {std::vector<int>{3, 2, 2}, std::vector<int>()}) {
    RunSchedule schedule = Pipeline(3);
    SimulationOptions costs;
    ASSERT_TRUE(ApplyToSchedule(profile, cut, &schedule, &costs).ok());
    EXPECT_EQ(schedule.scheme.stages, 4);
    EXPECT_EQ(schedule.scheme.ranks, 3);
    EXPECT_THAT(schedule.terms.inputs,
                ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(1), ElementsAre(0, 2)));
    const std::vector<double> forwards = ForwardsOf(costs);
    EXPECT_EQ(forwards[0], 1) << "the tied parameter alone";
    EXPECT_EQ(std::accumulate(forwards.begin(), forwards.end(), 0.0), 7);
    EXPECT_TRUE(CheckSchedule(schedule).ok()) << CheckSchedule(schedule);
  }
}

TEST(ApplyToSchedule, TiedParameterOfOneStageAlone_IsNoStage) {
  Profile profile = OfOneSample(7);
  profile.parts[0].readers = {1, 2};
  RunSchedule schedule = Pipeline(3);
  SimulationOptions costs;
  ASSERT_TRUE(ApplyToSchedule(profile, {4, 2, 1}, &schedule, &costs).ok());
  EXPECT_EQ(schedule.scheme.stages, 3);
  EXPECT_THAT(ForwardsOf(costs), ElementsAre(4, 2, 1));
}

TEST(ApplyToSchedule, MoreStagesThanLayersBesideTiedOnes_IsAnError) {
  Profile profile = OfOneSample(3);
  profile.parts[0].readers = {1, 2};
  RunSchedule schedule = Pipeline(3);
  SimulationOptions costs;
  EXPECT_EQ(ApplyToSchedule(profile, {}, &schedule, &costs).message(),
            "the profile's 3 layers cannot be cut into 3 stages beside its tied parameters");
}

// The cut of a plan may be of another model than the profile.
TEST(ApplyToSchedule, CutThatIsNotOfTheProfilesLayers_IsAnError) {
  Profile tied = OfOneSample(7);
  tied.parts[0].readers = {1, 6};
  for (const Profile& profile : {tied, OfOneSample(7)}) {
    const auto error = [&](const std::vector<int>& cut) {
      RunSchedule schedule = Pipeline(3);
      SimulationOptions costs;
      return std::string(ApplyToSchedule(profile, cut, &schedule, &costs).message());
    };
    EXPECT_EQ(error({3, 2, 3}), "the profile is of 7 layers, the model has 8");
    EXPECT_EQ(error({2147483647, 2147483647, 9}), "the profile is of 7 layers, the model has 4294967303");
    EXPECT_EQ(error({3, 2, 1}), "the profile is of 7 layers, the model has 6");
    EXPECT_EQ(error({9, -3, 1}), "a stage of the model has -3 layers; it needs at least 1");
    EXPECT_EQ(error({5, 0, 2}), "a stage of the model has 0 layers; it needs at least 1");
    EXPECT_EQ(error({5, 2}), "the layers are cut into 2 stages, and the schedule is of 3");
    EXPECT_EQ(error({3, 2, 2}), "");
  }
}

std::string ErrorOfProfile(const std::string& text) {
  const std::string path = absl::StrCat(testing::TempDir(), "/profile.json");
  std::ofstream(path) << text;
  const auto profile = ReadProfile(path);
  return profile.ok() ? "" : std::string(profile.status().message());
}

TEST(ReadProfile, BandwidthThatIsAlmostNone_IsAnError) {
  const std::string path = absl::StrCat(testing::TempDir(), "/slow.json");
  for (const std::string key : {"bandwidth", "host_bandwidth"}) {
    std::ofstream(path) << R"({"layers": [{"forward": 1}], ")" << key << R"(": 1e-320})";
    EXPECT_THAT(std::string(ReadProfile(path).status().message()),
                HasSubstr(absl::StrCat("slow.json: ", key, ": must be a number from 1e-30 to 1e+30")));
  }
}

TEST(ReadProfile, ReadersOfTiedLayers_AreOneOrTwoBehindThem) {
  const auto with = [](absl::string_view first, absl::string_view second) {
    return absl::StrCat(R"({"layers": [{"forward": 0)", first, R"(}, {"forward": 1)", second,
                        R"(}, {"forward": 1}]})");
  };
  EXPECT_EQ(ErrorOfProfile(with(R"(, "readers": [1, 2])", "")), "");
  EXPECT_EQ(ErrorOfProfile(with(R"(, "readers": [2])", R"(, "readers": [2])")), "");
  for (const char* wrong : {"[]", "[0]", "[3]", "[1, 1]", "[2, 1]", "[1, 2, 3]", "1", "[\"head\"]"}) {
    EXPECT_THAT(ErrorOfProfile(with(absl::StrCat(R"(, "readers": )", wrong), "")),
                HasSubstr("layers[0].readers: must be the numbers of one or two layers behind it"))
        << wrong;
  }
  EXPECT_THAT(ErrorOfProfile(with("", R"(, "readers": [2])")), HasSubstr("which are the first layers"));
  EXPECT_THAT(ErrorOfProfile(with(R"(, "readers": [1, 2])", R"(, "readers": [2])")),
              HasSubstr("layers[0].readers: names a tied parameter, which reads nothing"));
  EXPECT_THAT(ErrorOfProfile(R"({"stages": [{"forward": 0, "readers": [1]}, {"forward": 1}]})"),
              HasSubstr("stages[0].readers: is of layers"));
}

}  // namespace
}  // namespace weft::plan_file_test
