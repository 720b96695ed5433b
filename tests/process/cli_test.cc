// The command line as a person meets it: exit codes, and what is said where.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

std::vector<std::string> Simulate(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"weft", "simulate", "1f1b", "--stages", "4", "--microbatches", "8"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void ExpectUsageError(const std::vector<std::string>& arguments, const std::string& message) {
  const CommandResult result = Command::Run(arguments);
  EXPECT_EQ(result.code, 2) << message;
  EXPECT_THAT(result.err, HasSubstr(message));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(Cli_Help, AskedFor_ExamplesOnStandardOutput) {
  for (const char* flag : {"--help", "-h"}) {
    const CommandResult result = Command::Run({"weft", flag});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, AllOf(HasSubstr("simulate"), HasSubstr("train"), HasSubstr("Examples:")));
    EXPECT_THAT(result.err, IsEmpty());
  }
  const CommandResult sub = Command::Run({"weft", "simulate", "--help"});
  EXPECT_EQ(sub.code, 0);
  EXPECT_THAT(sub.out, AllOf(HasSubstr("--microbatches"), HasSubstr("groups: number of groups")));
}

TEST(Cli_Version, AskedFor_NameAndNumber) {
  const CommandResult result = Command::Run({"weft", "--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, ::testing::StartsWith("weft 0."));
}

TEST(Cli_Usage, MistakesInArguments_ExitTwoWithNearestName) {
  ExpectUsageError({"weft"}, "no command given");
  ExpectUsageError({"weft", "trian"}, "did you mean \"train\"?");
  ExpectUsageError({"weft", "--nope"}, "unknown flag \"--nope\"");
  ExpectUsageError({"weft", "simulate"}, "SCHEDULE is required");
  ExpectUsageError({"weft", "train"}, "FILE is required");
  ExpectUsageError(Simulate({"--nope"}), "unknown flag \"--nope\"");
  ExpectUsageError(Simulate({"--step", "3"}), "did you mean \"--steps\"?");
  ExpectUsageError(Simulate({"--steps"}), "--steps");
  ExpectUsageError(Simulate({"--steps", "0"}), "not in range");
  ExpectUsageError(Simulate({"-o", "pdf"}), "pdf not in {table,json,svg,trace,csv}");
  ExpectUsageError(Simulate({"more"}), "not expected: more");
}

TEST(Cli_Simulate, BadSchedulesAndSizes_ExitTwoWithReason) {
  const auto simulate = [](const std::string& schedule) {
    return std::vector<std::string>{"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8"};
  };
  ExpectUsageError(simulate("1f1"), "did you mean \"1f1b\"?");
  ExpectUsageError(simulate("lpp"), "lpp needs `groups`");
  ExpectUsageError(simulate("lpp,groups=0,ranks=2"), "groups is '0'");
  ExpectUsageError(simulate("lpp,groups=99,ranks=2"), "at most 8 groups");
  ExpectUsageError(simulate("periodic"), "not built yet");
  ExpectUsageError(Simulate({"--forward", "1,2"}), "each of the 4 stages");
  ExpectUsageError(Simulate({"--forward", "-1"}), "\"-1\" is not a number");
  ExpectUsageError(Simulate({"--forward", "nan"}), "\"nan\" is not a number");
  ExpectUsageError(Simulate({"--activation", "3 pounds"}), "may end in KB");
  ExpectUsageError(Simulate({"--latency", "1,2"}), "one number, not a list");
  ExpectUsageError({"weft", "simulate", "1f1b", "--stages", "10000", "--microbatches", "10000"}, "more than");
}

TEST(Cli_Simulate, Memory_NamesTheRankThatNeedsMore) {
  const CommandResult result =
      Command::Run(Simulate({"--activation", "1GiB", "--weight", "1GiB", "--memory", "4GiB"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 needs 5.0 GiB"), HasSubstr("more than the 4.0 GiB")));
  EXPECT_EQ(Command::Run(Simulate({"--activation", "1GiB", "--weight", "1GiB", "--memory", "5GiB"})).code, 0);
}

TEST(Cli_Simulate, Json_HasTheFieldsAndFiguresOfTheContract) {
  const CommandResult result = Command::Run(Simulate({"-o", "json", "--jobs", "--activation", "100"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["stages"], 4);
  EXPECT_EQ(json["microbatches"], 8);
  EXPECT_EQ(json["steps"], 1);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_DOUBLE_EQ(json["makespan"], 22);
  EXPECT_DOUBLE_EQ(json["period"], 22);
  EXPECT_NEAR(json["bubble_ratio"], 0.2727, 5e-5);
  EXPECT_NEAR(json["throughput_per_rank"], 0.7273, 5e-5);
  EXPECT_DOUBLE_EQ(json["throughput_bound"], 1);
  const Json first = {{"rank", 0},
                      {"busy", 16.0},
                      {"idle", 6.0},
                      {"peak_activations", 4},
                      {"peak_activation_bytes", 400},
                      {"peak_weight_versions", 1},
                      {"activation_receives", 0},
                      {"gradient_receives", 8},
                      {"weight_fetches", 0},
                      {"bytes_received", 800},
                      {"bytes_sent", 800}};
  ASSERT_EQ(json["rank_stats"].size(), 4u);
  EXPECT_EQ(json["rank_stats"][0], first);
  EXPECT_TRUE(json["rank_stats"][0]["bytes_sent"].is_number_integer());
  ASSERT_EQ(json["jobs"].size(), 68u);
  EXPECT_EQ(json["jobs"][0], (Json{{"step", 0},
                                   {"stage", 0},
                                   {"microbatch", 0},
                                   {"kind", "forward"},
                                   {"rank", 0},
                                   {"start", 0.0},
                                   {"end", 1.0},
                                   {"weights_version", 0}}));
  EXPECT_FALSE(Json::parse(Command::Run(Simulate({"-o", "json"})).out).contains("jobs"));
}

TEST(Cli_Simulate, ActionsFile_IsReadAsTheScheduleThatWroteIt) {
  const TestFolder folder;
  const auto simulate = [](const std::string& schedule, const std::string& form) {
    return Command::Run({"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8", "-o", form});
  };
  const CommandResult written = simulate("zb_h1", "csv");
  ASSERT_EQ(written.code, 0) << written.err;
  const std::string path = folder.Write("actions.csv", written.out);
  const CommandResult read = simulate(path, "csv");
  EXPECT_EQ(read.code, 0) << read.err;
  EXPECT_EQ(read.out, written.out);
  EXPECT_EQ(Json::parse(simulate(path, "json").out)["makespan"], 27.0);
  ExpectUsageError({"weft", "simulate", path, "--stages", "4", "--microbatches", "9"},
                   "has 4 stages and 8 micro-batches");
  const auto one = [](const std::string& file) {
    return std::vector<std::string>{"weft", "simulate", file, "--stages", "1", "--microbatches", "1"};
  };
  ExpectUsageError(one(folder.Write("communicates.csv", "0F0,0SEND_F0\n")), "row 1, cell 2");
  ExpectUsageError(one(folder / "nothing.csv"), "cannot read");
  ExpectUsageError(one(folder.path()), "cannot read");
}

TEST(Cli_Simulate, FormulasOnTheCommandLineAndInAFile_AreTheFamilyThatTheyDescribe) {
  const TestFolder folder;
  const auto json = [](const std::string& schedule) {
    const CommandResult r = Command::Run(
        {"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8", "--jobs", "-o", "json"});
    EXPECT_EQ(r.code, 0) << r.err;
    Json json = Json::parse(r.code == 0 ? r.out : "{}");
    json.erase("schedule");
    return json;
  };
  const std::string formulas = "compute: \"(R*b) % W + s % R\", priority: \"((k != forward)*B + b)*S + s\"";
  const Json named = json("lpp,groups=2,ranks=2");
  EXPECT_EQ(json("custom,workers=4,R=2,compute=(R*b)%W+s%R,priority=((k!=forward)*B+b)*S+s"), named);
  EXPECT_EQ(json(folder.Write("scheme.yaml", "custom: {workers: 4, R: 2, " + formulas + "}\n")), named);
  EXPECT_EQ(json(folder.Write("keyed.yaml", "schedule:\n  custom: {workers: 4, R: 2, " + formulas + "}\n")),
            named);
  const std::string wrong = folder.Write("wrong.yaml", "custom:\n  workers: 4\n  compute: s % Q\n");
  ExpectUsageError({"weft", "simulate", wrong, "--stages", "4", "--microbatches", "8"},
                   "wrong.yaml:3: custom: compute: column 5");
  ExpectUsageError({"weft", "simulate", wrong}, "says no sizes");
  ExpectUsageError({"weft", "simulate", "1f1b"}, "--stages and --microbatches are required");
}

// What the gallery's pages say of their files.
TEST(Cli_Simulate, FormulasOfTheGallery_RunAsItsPagesSay) {
  const std::string gallery = std::string(std::getenv("WEFT_SOURCE")) + "/docs/schedules/";
  const auto makespan = [&](const std::string& file, const char* microbatches) {
    const CommandResult r = Command::Run({"weft", "simulate", gallery + file, "--stages", "8",
                                          "--microbatches", microbatches, "--backward", "2", "-o", "json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.code == 0 ? r.out : "{\"makespan\": 0}")["makespan"].get<double>();
  };
  EXPECT_EQ(makespan("custom_lpp.yaml", "8"), 33);
  EXPECT_EQ(makespan("halves.yaml", "16"), 60);
}

TEST(Cli_Simulate, RunFile_GivesScheduleAndSizes) {
  const TestFolder folder;
  const std::string run = folder.Write("run.yaml",
                                       "model: {gpt: {layers: 4, width: 32, heads: 2, context: 32}}\n"
                                       "data: {text: {path: not_here.txt}}\n"
                                       "train: {steps: 3, batch: 8, microbatches: 8}\n"
                                       "stages: 4\nschedule: 1f1b\n");
  const CommandResult r = Command::Run({"weft", "simulate", run, "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(Json::parse(r.out)["makespan"], 22.0);
}

TEST(Cli_Simulate, OtherForms_LookLikeWhatTheyAre) {
  EXPECT_THAT(Command::Run(Simulate({})).out,
              AllOf(HasSubstr("makespan    22 time units"), HasSubstr("peak act.")));
  EXPECT_THAT(Command::Run(Simulate({"-o", "svg"})).out, ::testing::StartsWith("<svg "));
  EXPECT_THAT(Command::Run(Simulate({"-o", "csv"})).out, ::testing::StartsWith("0F0,0F1,0F2,0F3,0B0,"));
  const Json trace = Json::parse(Command::Run(Simulate({"-o", "trace"})).out);
  EXPECT_GT(trace["traceEvents"].size(), 64u);
}

TEST(Cli_Simulate, FullDisk_SaysSoAndFails) {
  const CommandResult result = Command::Run(
      {"/bin/sh", "-c", "\"$0\"/weft simulate 1f1b --stages 4 --microbatches 8 -o svg > /dev/full",
       getenv("WEFT_BIN")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot write to standard output: No space left"));
}

TEST(Cli_Train, BadRunFiles_ExitSeventyEightWithFileAndLine) {
  const TestFolder folder;
  const auto refused = [&](const std::map<std::string, std::string>& changes, const std::string& message) {
    const std::string file = WriteSmallRun(folder, changes);
    const CommandResult result = Command::Run({"weft", "train", file, "--out", folder / "out"});
    EXPECT_EQ(result.code, 78);
    EXPECT_THAT(result.err, AllOf(HasSubstr("run.yaml:"), HasSubstr(message)));
    EXPECT_THAT(result.out, IsEmpty());
  };
  refused({{"stages", "99"}}, "stages: 99 is more than the 6 layers of the model");
  refused({{"stagse", "4"}}, "did you mean \"stages\"?");
  refused({{"train", "{steps: 3, batch: 15, microbatches: 4}"}}, "train.batch: ");
  refused({{"data", "{text: {path: /nonexistent}}"}}, "cannot read /nonexistent");
  refused({{"schedule", "{lpp: {groups: 0, ranks: 2}}"}}, "schedule: lpp: groups is '0'");
  refused({{"schedule", "1f1"}}, "did you mean \"1f1b\"?");
  const CommandResult missing = Command::Run({"weft", "train", folder / "none.yaml"});
  EXPECT_EQ(missing.code, 78);
  EXPECT_THAT(missing.err, HasSubstr("none.yaml: cannot read the run file"));
}

}  // namespace
}  // namespace weft
