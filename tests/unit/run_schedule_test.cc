// Tests how a run names its schedule, in a file and in one line.
#include "run/run_schedule.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/small_run_spec.h"

namespace weft::run_schedule_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RunSpec_Schedule, CustomFormulas_TravelAsTheyAre) {
  const Json formulas = {
      {"workers", 8}, {"compute", "(R*b) % W + s % R"}, {"R", 4}, {"split_backward", true}};
  const auto spec = ParseRunSpec(With("/schedule", {{"custom", formulas}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::map<std::string, std::string> parameters = {
      {"workers", "8"}, {"compute", "(R*b) % W + s % R"}, {"R", "4"}, {"split_backward", "true"}};
  EXPECT_EQ(spec->schedule.name, "custom");
  EXPECT_EQ(spec->schedule.parameters, parameters);
  const auto again = ParseRunSpec(Json::parse(ToJson(*spec).dump()));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->schedule.parameters, parameters);
}

TEST(RunSpec_Schedule, RowsOfActions_TravelWithoutTheirFile) {
  const Json file = {{"path", "mine.csv"}, {"actions", "0F0,0B0\n"}};
  const auto spec = ParseRunSpec(With("/schedule", {{"file", file}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto again = ParseRunSpec(ToJson(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->schedule.parameters.at("actions"), "0F0,0B0\n");
  EXPECT_EQ(ToText(again->schedule), "file,path=mine.csv");
  ExpectRefused({With("/schedule", {{"file", "mine.csv"}}), "schedule.file", "names a file of actions"});
}

TEST(RunSpec_Schedule, CustomParameterThatIsNone_PathAtIt) {
  ExpectRefused({With("/schedule", {{"custom", {{"weigths", "s"}}}}), "schedule.custom.weigths",
                 "did you mean \"weights\"?"});
  ExpectRefused({With("/schedule", {{"custom", {{"s", 3}}}}), "schedule.custom.s", "a word of the formulas"});
}

TEST(RunSpec_Schedule, BadNamesAndParameters_PathAtTheValue) {
  ExpectRefused({With("/schedule", "1f1"), "schedule", "did you mean \"1f1b\"?"});
  ExpectRefused({With("/schedule", {{"lp", Json::object()}}), "schedule.lp", "did you mean \"lpp\"?"});
  ExpectRefused({With("/schedule/lpp/group", 2), "schedule.lpp.group", "did you mean \"groups\"?"});
  ExpectRefused(
      {With("/schedule", {{"zb_h1", {{"groups", 2}}}}), "schedule.zb_h1.groups", "none is allowed"});
  ExpectRefused({With("/schedule", {{"1f1b", {{"in_fligt", 2}}}}), "schedule.1f1b.in_fligt",
                 "did you mean \"in_flight\"?"});
  ExpectRefused({With("/schedule/rule", "syn"), "schedule.rule", "did you mean \"sync\"?"});
  ExpectRefused({With("/schedule/rule", "cdp"), "schedule.rule", "did you mean \"cdp_v1\"?"});
  ExpectRefused({With("/schedule/rule", 1), "schedule.rule", "must be text"});
  ExpectRefused({With("/schedule/reduction", "orderd"), "schedule.reduction", "did you mean \"ordered\"?"});
  ExpectRefused(
      {With("/schedule/activations", "recompte"), "schedule.activations", "did you mean \"recompute\"?"});
  ExpectRefused({With("/schedule", "1f1b,activations=none"), "schedule", "unknown activations \"none\""});
  ExpectRefused({With("/schedule", {{"rule", "sync"}}), "schedule", "names no schedule"});
}

TEST(RunSpec_Activations, OneAStage_AreKeptAndCounted) {
  const auto spec = ParseRunSpec(With("/schedule/activations", {"recompute", "retain", "offload", "retain"}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->schedule.activations, "recompute/retain/offload/retain");
  EXPECT_EQ(ActivationsOf(*spec, 0), ActivationPolicy::kRecompute);
  EXPECT_EQ(ActivationsOf(*spec, 2), ActivationPolicy::kOffload);
  EXPECT_EQ(ActivationsOf(*spec, 3), ActivationPolicy::kRetain);
  EXPECT_EQ(ToJson(*spec)["schedule"]["activations"], Json({"recompute", "retain", "offload", "retain"}));
  EXPECT_EQ(ParseRunSpec(ToJson(*spec))->schedule.activations, spec->schedule.activations);
  EXPECT_EQ(ParseRunSpec(With("/schedule", ToText(spec->schedule)))->schedule.activations,
            spec->schedule.activations);
  const auto schedule = ScheduleOf(*spec);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_THAT(schedule->terms.activations,
              ElementsAre(ActivationPolicy::kRecompute, ActivationPolicy::kRetain, ActivationPolicy::kOffload,
                          ActivationPolicy::kRetain));
  ExpectRefused({With("/schedule/activations", {"retain", "recompute"}), "schedule.activations",
                 "lists 2 for 4 stages"});
  ExpectRefused({With("/schedule/activations", Json::array()), "schedule.activations", "empty list"});
  ExpectRefused({With("/schedule/activations", {"retain", 1, "retain", "retain"}), "schedule.activations",
                 "must be one of retain, recompute, offload"});
  ExpectRefused({With("/schedule/activations", {"retain", "recompte", "retain", "retain"}),
                 "schedule.activations", "did you mean \"recompute\"?"});
}

// The bytes that a stage leaves and needs follow its own policy, and bfloat16 halves what layers compute.
TEST(ScheduleText_Parse, NameAndParameters_SameAsRunFile) {
  const auto schedule = ParseScheduleText("lpp,groups=2,ranks=4,rule=sync,reduction=ordered");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const auto file = ParseRunSpec(GptRun());
  EXPECT_EQ(schedule->name, file->schedule.name);
  EXPECT_EQ(schedule->parameters, file->schedule.parameters);
  EXPECT_EQ(ToText(*schedule), "lpp,groups=2,ranks=4");
  const auto recomputed = ParseScheduleText("lpp,groups=2,ranks=4,activations=recompute");
  ASSERT_TRUE(recomputed.ok()) << recomputed.status();
  EXPECT_EQ(recomputed->activations, "recompute");
  EXPECT_EQ(ToText(*recomputed), "lpp,groups=2,ranks=4,activations=recompute");
  EXPECT_EQ(schedule->activations, "retain");
  const auto fast = ParseScheduleText("ddp,reduction=fast");
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->reduction, "fast");
  EXPECT_EQ(ToText(*fast), "ddp,reduction=fast");
  EXPECT_EQ(ToText(*ParseScheduleText("1f1b")), "1f1b");
}

// The cyclic order itself bounds the activations.
TEST(RunSchedule, OrderOrNumberInFlightBesideACyclicRule_IsRefused) {
  for (const std::string text : {"1f1b,in_flight=3", "gpipe,order=depth_first"}) {
    const auto plain = ParseScheduleText(text), ruled = ParseScheduleText(text + ",rule=cdp_v2");
    ASSERT_TRUE(plain.ok() && ruled.ok()) << plain.status() << ruled.status();
    EXPECT_TRUE(MakeSchedule(*plain, 4, 4).ok());
    EXPECT_THAT(std::string(MakeSchedule(*ruled, 4, 4).status().message()),
                HasSubstr("says nothing beside rule=cdp_v2"));
  }
}

TEST(ScheduleText_Parse, Formulas_KeepTheirCommasAndEqualSigns) {
  const auto schedule =
      ParseScheduleText("custom,workers=4,compute=min(s, b) % W,priority=(k==forward)*9+b,R=2");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->parameters.at("compute"), "min(s, b) % W");
  EXPECT_EQ(schedule->parameters.at("priority"), "(k==forward)*9+b");
  EXPECT_EQ(schedule->parameters.at("R"), "2");
}

TEST(ScheduleText_Parse, Malformed_RefusedWithReason) {
  const auto message = [](absl::string_view text) {
    return std::string(ParseScheduleText(text).status().message());
  };
  EXPECT_THAT(message("1f1"), HasSubstr("did you mean \"1f1b\"?"));
  EXPECT_THAT(message(""), HasSubstr("names no schedule"));
  EXPECT_THAT(message("lpp,groups"), HasSubstr("not of the form key=value"));
  EXPECT_THAT(message("lpp,groups="), HasSubstr("not of the form key=value"));
  EXPECT_THAT(message("lpp,groups=2,groups=2,ranks=1"), HasSubstr("gives groups twice"));
  EXPECT_THAT(message("lpp,groups=2,rnaks=1"), HasSubstr("did you mean \"ranks\"?"));
  EXPECT_THAT(message("ddp,rule=cdp"), HasSubstr("did you mean \"cdp_v1\"?"));
  EXPECT_EQ(message(std::string(100000, 'x')).size() < 400, true);
}

}  // namespace
}  // namespace weft::run_schedule_test
