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
  ExpectUsageError(Simulate({"-o", "pdf"}), "pdf not in {table,json,svg,trace,csv,memory}");
  ExpectUsageError(Simulate({"more"}), "one schedule at a time, and not more too");
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

TEST(Cli_Simulate, Memory_AdmitsForwardsAndNamesWhatCannotFit) {
  const auto simulate = [](const char* schedule, const char* memory) {
    return Command::Run({"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8", "--activation",
                         "1GiB", "--weight", "1GiB", "--memory", memory, "-o", "json"});
  };
  const auto makespan = [](const CommandResult& r) {
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.code == 0 ? r.out : "{\"makespan\": 0}")["makespan"].get<double>();
  };
  // With four activations beside the weights gpipe is 1f1b; with fewer it waits, with none it cannot run.
  EXPECT_EQ(makespan(simulate("1f1b", "5GiB")), 22);
  EXPECT_GT(makespan(simulate("1f1b", "3GiB")), 22);
  EXPECT_EQ(Json::parse(simulate("1f1b", "3GiB").out)["rank_stats"][0]["peak_activations"], 2);
  const CommandResult none = simulate("1f1b", "1.5GiB");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("stage 0, micro-batch 0 needs 1073741824 bytes of activations on rank 0"));
  const CommandResult weights = simulate("1f1b", "0.5GiB");
  EXPECT_EQ(weights.code, 1);
  EXPECT_THAT(weights.err, HasSubstr("rank 0 holds 1073741824 bytes of weights"));
  // All forwards come first here, so none of those alive can end.
  const CommandResult order = simulate("zb_h2", "4GiB");
  EXPECT_EQ(order.code, 1);
  EXPECT_THAT(order.err, HasSubstr("forward (step 0, stage 0, micro-batch 3) leaves 1073741824 bytes"));
}

TEST(Cli_Simulate, Profile_GivesTimesAndBytesOfLayers) {
  const TestFolder folder;
  const std::string profile = folder.Write(
      "profile.json",
      R"({"layers": [{"forward": 1, "backward": 2, "weight_bytes": 10}, {"forward": 1}, {"forward": 2, "update": 3},)"
      R"( {"forward": 4, "backward_input": 4, "backward_weight": 4, "activation_bytes": 7}]})");
  const CommandResult r = Command::Run({"weft", "simulate", "gpipe", "--stages", "2", "--microbatches", "1",
                                        "--profile", profile, "--jobs", "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  // Cut into (1, 1, 2) and (4): forwards 4 and 4, backwards 8 and 8, the first stage's update 3.
  EXPECT_EQ(Json::parse(r.out)["makespan"], 4 + 4 + 8 + 8 + 3);
  const auto refused = [&](const std::string& text) {
    return std::vector<std::string>{"weft",     "simulate",  "gpipe",
                                    "--stages", "2",         "--microbatches",
                                    "1",        "--profile", folder.Write("wrong.json", text)};
  };
  ExpectUsageError(refused("{"), "is not JSON");
  ExpectUsageError(refused("{}"), "a list of layers, or a list of stages");
  ExpectUsageError(refused(R"({"stages": [{"forward": 1}]})"), "of 1 stages, not of 2");
  ExpectUsageError(refused(R"({"layers": [{"forward": 1}]})"), "1 layers cannot be cut into 2 stages");
  ExpectUsageError(refused(R"({"stages": [{"forward": -1}, {"forward": 1}]})"), "stages[0].forward");
  ExpectUsageError(refused(R"({"stages": [{"forwards": 1}]})"), "did you mean \"forward\"?");
  ExpectUsageError({"weft", "simulate", "1f1b", "--stages", "2", "--microbatches", "1", "--profile", "/none"},
                   "cannot read");
}

std::string CompareRun(const TestFolder& folder, const std::string& schedule) {
  return folder.Write("compare.yaml",
                      "model: {gpt: {layers: 14, width: 32, heads: 2, context: 32}}\n"
                      "data: {text: {path: not_here.txt}}\n"
                      "train: {steps: 3, batch: 32, microbatches: 32, optimizer: adamw}\n"
                      "stages: 8\nschedule: " +
                          schedule + "\n");
}

TEST(Cli_Compare, EveryFamily_IsPredictedFastestFirst) {
  const TestFolder folder;
  const CommandResult r = Command::Run({"weft", "compare", CompareRun(folder, "1f1b"), "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = Json::parse(r.out);
  EXPECT_EQ(json["stages"], 8);
  EXPECT_EQ(json["microbatches"], 32);
  double before = 0;
  std::map<std::string, Json> entries;
  for (const Json& entry : json["schedules"]) {
    entries[entry["schedule"]] = entry;
    if (!entry["fits"]) continue;
    EXPECT_GE(entry["step_time"], before);
    before = entry["step_time"];
  }
  for (const char* name : {"ddp", "fsdp", "gpipe", "1f1b", "lpp,groups=2,ranks=4", "fslpp,groups=4,ranks=8",
                           "depth_first,ranks=4", "breadth_first,ranks=2", "interleaved,ranks=4", "zb_h1",
                           "zb_h2", "zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v"}) {
    ASSERT_TRUE(entries.contains(name)) << name;
    EXPECT_TRUE(entries[name]["fits"]) << name;
  }
  EXPECT_EQ(entries["1f1b"]["chosen"], true);
  EXPECT_EQ(entries["gpipe"]["chosen"], false);
  EXPECT_LT(entries["zb_h1"]["step_time"], entries["1f1b"]["step_time"]);
  EXPECT_EQ(entries["ddp"]["ranks"], 32);
}

TEST(Cli_Compare, Memory_MarksWhatDoesNotFitAndWhy) {
  const TestFolder folder;
  const std::string file = CompareRun(folder, "1f1b");
  const CommandResult all = Command::Run({"weft", "compare", file, "-o", "json"});
  double ddp = 0;
  const Json whole = Json::parse(all.out);
  for (const Json& entry : whole["schedules"]) {
    if (entry["schedule"] == "ddp") ddp = entry["peak_bytes"];
  }
  // A rank of ddp holds the whole model; this is enough for a pipeline's.
  const CommandResult r =
      Command::Run({"weft", "compare", file, "--memory", std::to_string(static_cast<int64_t>(ddp / 2))});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("ddp: does not fit: "));
  EXPECT_THAT(r.out, HasSubstr("1f1b *"));
  const CommandResult none = Command::Run({"weft", "compare", file, "--memory", "1KB"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no schedule fits"));
  const CommandResult few = Command::Run({"weft", "compare", file, "--workers", "4"});
  EXPECT_THAT(few.out, HasSubstr("1f1b *: does not fit: needs 8 ranks, more than --workers 4"));
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
                      {"held_bytes", 0},
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

TEST(Cli_Simulate, Trace_IsReadAsTheOrderOfOneOfItsSteps) {
  const TestFolder folder;
  for (const char* schedule : {"1f1b", "fslpp,groups=2,ranks=2", "dualpipe", "v_half"}) {
    SCOPED_TRACE(schedule);
    const auto simulate = [&](const std::string& form) {
      return Command::Run({"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8", "--steps",
                           "3", "--backward", "2", "-o", form});
    };
    const std::string path = folder.Write("trace.json", simulate("trace").out);
    for (const char* step : {"0", "1", "2"}) {
      const CommandResult read = Command::Run({"weft", "simulate", path, "--from-step", step, "-o", "csv"});
      ASSERT_EQ(read.code, 0) << read.err;
      EXPECT_EQ(Command::Run({"weft", "simulate", folder.Write("step.csv", read.out), "-o", "csv"}).out,
                read.out);
      if (*step == '0' && simulate("csv").out.find("OVERLAP") == std::string::npos) {
        EXPECT_EQ(read.out, simulate("csv").out);
      }
    }
    ExpectUsageError({"weft", "simulate", path, "--from-step", "3"}, "has steps 0 to 2");
  }
  // Two towers: stage 1 starts before stage 0, which a chain could not.
  const CommandResult towers =
      Command::Run({"weft", "simulate", "gpipe", "--stages", "3", "--microbatches", "4", "--inputs",
                    "data,data,0+1", "--forward", "5,1,1", "-o", "trace"});
  ASSERT_EQ(towers.code, 0) << towers.err;
  const CommandResult order = Command::Run({"weft", "simulate", folder.Write("towers.json", towers.out),
                                            "--forward", "5,1,1", "--jobs", "-o", "json"});
  ASSERT_EQ(order.code, 0) << order.err;
  for (const Json& job : Json::parse(order.out)["jobs"]) {
    if (job["stage"] == 1 && job["microbatch"] == 0 && job["kind"] == "forward") {
      EXPECT_EQ(job["start"], 0.0);
    }
  }
  const auto read = [&](const std::string& text) {
    return std::vector<std::string>{"weft", "simulate", folder.Write("bad.json", text)};
  };
  ExpectUsageError(read("{"), "is not JSON");
  ExpectUsageError(read("{\"traceEvents\": []}"), "it has no jobs");
  ExpectUsageError(read("{\"traceEvents\": [{\"ph\": \"M\"}, {\"ph\": \"X\", \"cat\": \"forward\", "
                        "\"ts\": 0, \"dur\": 1, \"args\": {\"rank\": -1, \"step\": 0, \"stage\": 0, "
                        "\"microbatch\": 0}}]}"),
                   "event 2 is no job");
  ExpectUsageError({"weft", "simulate", folder / "nothing.json"}, "cannot read");
  ExpectUsageError({"weft", "simulate", "1f1b", "--stages", "4", "--microbatches", "8", "--from-step", "1"},
                   "--from-step is for traces");
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
