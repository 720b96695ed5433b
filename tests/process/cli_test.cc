// The command line as a person meets it: exit codes, and what is said where.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::cli_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

std::vector<std::string> Simulate(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"weft", "simulate", "1f1b", "--stages", "4", "--microbatches", "8"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The entries of the list `key` in what a command printed with -o json. A copy: a range-for over
// Json::parse(..)[key] would walk through a document that no longer exists.
std::vector<Json> List(const CommandResult& result, const char* key) {
  const Json document = Json::parse(result.out);
  EXPECT_TRUE(document.contains(key)) << result.out;
  return document.value(key, std::vector<Json>());
}

void ExpectRefusal(int code, const std::vector<std::string>& arguments, const std::string& message) {
  const CommandResult result = Command::Run(arguments);
  EXPECT_EQ(result.code, code) << message;
  EXPECT_THAT(result.err, HasSubstr(message));
  EXPECT_THAT(result.out, IsEmpty());
}
// The command line is wrong, by itself or for the file that it names.
void ExpectUsageError(const std::vector<std::string>& arguments, const std::string& message) {
  ExpectRefusal(2, arguments, message);
}
// A file that the command line names is wrong.
void ExpectBadFile(const std::vector<std::string>& arguments, const std::string& message) {
  ExpectRefusal(78, arguments, message);
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

const std::vector<std::string>& Commands() {
  static const auto* const commands =
      new std::vector<std::string>{"train",   "eval",    "generate", "checkpoint", "simulate", "compare",
                                   "profile", "explain", "submit",   "ls",         "workers",  "top",
                                   "doctor",  "slurm",   "describe", "wait",       "cancel",   "completion"};
  return *commands;
}

TEST(Cli_Help, OfEachCommand_HasExamplesOfItsOwn_In100Columns) {
  for (const std::string& command : Commands()) {
    const CommandResult result = Command::Run({"weft", command, "--help"});
    EXPECT_EQ(result.code, 0);
    std::string text = result.out;
    const size_t examples = text.find("\nExample");
    ASSERT_NE(examples, std::string::npos) << command;
    std::stringstream lines(text.substr(examples + 1));
    std::string line;
    std::getline(lines, line);
    int own = 0;
    while (std::getline(lines, line) && !line.empty()) {
      if (line.rfind("      ", 0) == 0) continue;  // what the one above does
      EXPECT_THAT(line, AnyOf(HasSubstr("weft " + command), HasSubstr("--profile profile.json"))) << command;
      ++own;
    }
    EXPECT_GE(own, 2) << command;
    std::stringstream all(text);
    while (std::getline(all, line)) EXPECT_LE(line.size(), 100u) << command << ": " << line;
  }
}

// Runs it with further variables, as NAME=VALUE.
CommandResult WithEnvironment(std::vector<std::string> variables, const std::vector<std::string>& arguments) {
  variables.insert(variables.begin(), "/usr/bin/env");
  variables.push_back(std::string(std::getenv("WEFT_BIN")) + "/" + arguments[0]);
  variables.insert(variables.end(), arguments.begin() + 1, arguments.end());
  return Command::Run(variables);
}

TEST(Cli_Colour, OnlyWhereItIsAskedFor_OrOnATerminal) {
  const std::vector<std::string> ls = {"weft", "ls", "--coordinator", "unix:/nonexistent/socket"};
  std::vector<std::string> always = ls, never = ls;
  always.insert(always.end(), {"--color", "always"});
  never.insert(never.end(), {"--color=never"});
  EXPECT_THAT(Command::Run(ls).err, Not(HasSubstr("\x1b[")));
  EXPECT_THAT(Command::Run(always).err, HasSubstr("\x1b[1;31mweft:\x1b[0m "));
  // script(1) runs it on a terminal.
  const auto on_terminal = [&](const std::vector<std::string>& variables, const std::string& flag) {
    std::vector<std::string> line = variables;
    line.insert(line.begin(), {"/usr/bin/env", "TERM=xterm"});
    line.insert(line.end(), {"/usr/bin/script", "-qec",
                             std::string(std::getenv("WEFT_BIN")) +
                                 "/weft ls --coordinator unix:/nonexistent/socket " + flag,
                             "/dev/null"});
    return Command::Run(line).out;
  };
  if (access("/usr/bin/script", X_OK) != 0) GTEST_SKIP() << "there is no script(1) here";
  EXPECT_THAT(on_terminal({}, ""), HasSubstr("\x1b[1;31mweft:"));
  EXPECT_THAT(on_terminal({"NO_COLOR=1"}, ""), Not(HasSubstr("\x1b[")));
  EXPECT_THAT(on_terminal({"TERM=dumb"}, ""), Not(HasSubstr("\x1b[")));
  EXPECT_THAT(on_terminal({}, "--color=never"), Not(HasSubstr("\x1b[")));
}

TEST(Cli_Locale, WithoutUnicode_PicturesAreLetters) {
  const std::vector<std::string> arguments = Simulate({});
  const std::string plain = WithEnvironment({"LC_ALL=C"}, arguments).out;
  EXPECT_TRUE(
      std::all_of(plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  EXPECT_THAT(plain, HasSubstr("f forward"));
  EXPECT_THAT(WithEnvironment({"LC_ALL=C.UTF-8"}, arguments).out, HasSubstr("\u2588"));
}

TEST(Cli_Width, OfTheTerminal_IsKept) {
  for (const int width : {60, 80, 200}) {
    const std::string table =
        WithEnvironment({"COLUMNS=" + std::to_string(width), "LC_ALL=C"}, Simulate({})).out;
    const size_t ranks = table.find("rank ", table.find("idle  ("));
    std::stringstream lines(table.substr(ranks));
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), static_cast<size_t>(width)) << line;
  }
}

// Returns the words that bash offers for the last word of a line.
std::string Completed(const std::string& line) {
  const std::string script =
      "source <(\"$WEFT_BIN/weft\" completion bash) || exit 1\n"
      "COMP_WORDS=(" +
      line +
      ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
      "compopt() { :; }\n_weft || exit 1\nprintf '%s ' \"${COMPREPLY[@]}\"\n";
  const CommandResult result = Command::Run({"/bin/bash", "-c", script});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  return result.out;
}

TEST(Cli_Completion, InBash_CommandsFlagsAndValues) {
  EXPECT_EQ(Completed("weft tr"), "train trace ");
  EXPECT_EQ(Completed("weft train --pro"), "--processes ");
  EXPECT_EQ(Completed("weft simulate 1f1b -o s"), "svg ");
  EXPECT_EQ(Completed("weft simulate 1f1b --output = tr"), "trace ");
  EXPECT_THAT(Completed("weft simulate z"), AllOf(HasSubstr("zb_h1 "), HasSubstr("zb_v ")));
  EXPECT_EQ(Completed("weft train --device c"), "cpu cuda ");
  EXPECT_EQ(Completed("weft train --processes ''"), " ");
  EXPECT_EQ(Completed("weft checkpoint v"), "verify ");
  TestFolder folder;
  folder.Write("some run.yaml", "");
  EXPECT_EQ(Completed("weft train " + folder.path() + "/so"), folder / "some run.yaml ");
  for (const std::string& command : Commands()) EXPECT_EQ(Completed("weft " + command), command + " ");
}

TEST(Cli_Completion, OfEveryShell_IsPrinted) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const CommandResult result = Command::Run({"weft", "completion", shell});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, AllOf(HasSubstr("microbatches"), HasSubstr("zb_h1"))) << shell;
  }
  ExpectUsageError({"weft", "completion", "csh"}, "completion: ");
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
  ExpectUsageError({"weft", "explain", "1", "--step", "-1"}, "1000000000");
  ExpectUsageError(Simulate({"-o", "pdf"}), "pdf not in {table,json,svg,trace,csv,memory,operations}");
  ExpectUsageError(Simulate({"more"}), "give one schedule; only -o memory takes several");
}

TEST(Cli_Simulate, BadSchedulesAndSizes_ExitTwoWithReason) {
  const auto simulate = [](const std::string& schedule) {
    return std::vector<std::string>{"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8"};
  };
  ExpectUsageError(simulate("1f1"), "did you mean \"1f1b\"?");
  ExpectUsageError(simulate("lpp"), "lpp needs `groups`");
  ExpectUsageError(simulate("lpp,groups=0,ranks=2"), "groups is '0'");
  ExpectUsageError(simulate("lpp,groups=99,ranks=2"), "at most 8 groups");
  ExpectUsageError(simulate("cdp_v2"),
                   "cdp_v2 is a rule, not a schedule; write, for example, ddp,rule=cdp_v2");
  ExpectUsageError(Simulate({"--forward", "1,2"}), "each of the 4 stages");
  ExpectUsageError(Simulate({"--forward", "-1"}), "\"-1\" is not a number");
  ExpectUsageError(Simulate({"--forward", "nan"}), "\"nan\" is not a number");
  ExpectUsageError(Simulate({"--activation", "3 pounds"}), "may end in KB");
  ExpectUsageError(Simulate({"--latency", "1,2"}), "one number, not a list");
  ExpectUsageError({"weft", "simulate", "1f1b", "--stages", "10000", "--microbatches", "10000"}, "more than");
  ExpectUsageError(Simulate({"--backward", "1e308"}), "\"1e308\" is too large; the largest number is 1e+30");
  ExpectUsageError(Simulate({"--latency", "1e31"}), "the largest number is 1e+30");
  ExpectUsageError(Simulate({"--activation", "1e19"}), "\"1e19\" is too large; the largest number is 1e+18");
}

TEST(Cli_Simulate, SumsOfLargeSizes_ArePositiveAndFinite) {
  const CommandResult r = Command::Run(Simulate({"--activation", "1e18", "--latency", "1e30", "-o", "json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = Json::parse(r.out);
  EXPECT_GT(json["makespan"].get<double>(), 1e30);
  EXPECT_GT(json["peak_live_bytes"].get<double>(), 9.9e18);
  const TestFolder folder;
  const std::string profile =
      folder.Write("profile.json", R"({"layers": [{"forward": 1, "weight_bytes": 1e30}]})");
  ExpectBadFile(Simulate({"--profile", profile}), "layers[0].weight_bytes: must be a number from 0");
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
  // gpipe is 1f1b with four activations beside the weights; with fewer it waits, with none it cannot run.
  EXPECT_EQ(makespan(simulate("1f1b", "5GiB")), 22);
  EXPECT_GT(makespan(simulate("1f1b", "3GiB")), 22);
  EXPECT_EQ(Json::parse(simulate("1f1b", "3GiB").out)["rank_stats"][0]["peak_activations"], 2);
  const CommandResult none = simulate("1f1b", "1.5GiB");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("stage 0, micro-batch 0 needs 1.0 GiB of activations on rank 0"));
  const CommandResult weights = simulate("1f1b", "0.5GiB");
  EXPECT_EQ(weights.code, 1);
  EXPECT_THAT(weights.err, HasSubstr("rank 0 holds 1.0 GiB of weights"));
  // All forwards come first here, so none of those alive can end.
  const CommandResult order = simulate("zb_h2", "4GiB");
  EXPECT_EQ(order.code, 1);
  EXPECT_THAT(order.err, HasSubstr("forward (step 0, stage 0, micro-batch 3) leaves 1.0 GiB"));
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
  ExpectBadFile(refused("{"), "is not JSON");
  ExpectBadFile(refused("{\"layers\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
                "is nested 33 levels deep at byte");
  ExpectBadFile(refused("{}"), "a list of layers, or a list of stages");
  ExpectBadFile(refused(R"({"stages": [{"forward": 1}]})"), "of 1 stages, not of 2");
  ExpectBadFile(refused(R"({"layers": [{"forward": 1}]})"), "1 layers cannot be cut into 2 stages");
  ExpectBadFile(refused(R"({"stages": [{"forward": -1}, {"forward": 1}]})"), "stages[0].forward");
  ExpectBadFile(refused(R"({"stages": [{"forwards": 1}]})"), "did you mean \"forward\"?");
  ExpectBadFile({"weft", "simulate", "1f1b", "--stages", "2", "--microbatches", "1", "--profile", "/none"},
                "cannot read");
  ExpectBadFile(
      {"weft", "simulate", "1f1b", "--stages", "2", "--microbatches", "1", "--profile", folder.path()},
      absl::StrCat("cannot read ", folder.path(), ": Is a directory"));
}

std::string CompareRun(const TestFolder& folder, const std::string& schedule) {
  return folder.Write("compare.yaml",
                      "model: {gpt: {layers: 14, width: 32, heads: 2, context: 32}}\n"
                      "data: {text: {path: not_here.txt}}\n"
                      "train: {steps: 3, batch: 32, microbatches: 32, optimizer: adamw}\n"
                      "stages: 8\nschedule: " +
                          schedule + "\n");
}

std::string GptRun(const TestFolder& folder, const std::string& more = "") {
  return folder.Write("run.yaml",
                      "model: {gpt: {layers: 4, width: 32, heads: 2, context: 32}}\n"
                      "data: {text: {path: not_here.txt}}\n"
                      "train: {steps: 3, batch: 8, microbatches: 8}\n"
                      "stages: 4\nschedule: 1f1b\n" +
                          more);
}

// 0 would stand for no limit, and for links that take no time.
TEST(Cli_Figures, ZeroMemoryOrBandwidth_IsRefused) {
  const TestFolder folder;
  const std::string run = GptRun(folder);
  for (const char* const flag : {"--memory", "--bandwidth", "--host-bandwidth"}) {
    const std::string refusal = std::string(flag) + ": must be above 0";
    ExpectUsageError(Simulate({flag, "0"}), refusal);
    ExpectUsageError({"weft", "compare", run, flag, "0"}, refusal);
    ExpectUsageError({"weft", "plan", run, "--workers", "2", flag, "0GB"}, refusal);
  }
  for (const char* const key : {"bandwidth", "host_bandwidth"}) {
    const std::string profile =
        folder.Write("profile.json", std::string(R"({"layers": [{"forward": 1}], ")") + key + R"(": 0})");
    ExpectBadFile(Simulate({"--profile", profile}), std::string(key) + ": must be a number from 1e-30");
  }
}

TEST(Cli_Compare, EveryFamily_IsPredictedFastestFirst) {
  const TestFolder folder;
  const CommandResult r = Command::Run({"weft", "compare", CompareRun(folder, "1f1b"), "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = Json::parse(r.out);
  EXPECT_EQ(json["stages"], 8);
  EXPECT_EQ(json["microbatches"], 32);
  // Schedules that read old weights stand behind the others.
  std::pair<bool, double> before;
  std::map<std::string, Json> entries;
  for (const Json& entry : json["schedules"]) {
    entries[entry["schedule"]] = entry;
    if (!entry["fits"]) continue;
    const std::pair<bool, double> place = {entry["staleness"] > 0, entry["step_time"]};
    EXPECT_GE(place, before) << entry;
    before = place;
  }
  EXPECT_EQ(entries["1f1b"]["staleness"], 0);
  EXPECT_EQ(entries["pipedream_2bw"]["staleness"], 1);
  EXPECT_EQ(entries["lpp,groups=16,ranks=8"]["peak_activations"], 2);
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

TEST(Cli_Compare, SlowLinks_DeeperFormsAreProposedWhereTheyAreFaster) {
  const TestFolder folder;
  const std::string file = GptRun(folder);
  const auto entries = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"weft", "compare", file, "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    std::map<std::string, Json> entries;
    for (const Json& entry : List(Command::Run(words), "schedules")) entries[entry["schedule"]] = entry;
    return entries;
  };
  const std::string deep = "1f1b,in_flight=2*(S-s)-1";
  EXPECT_FALSE(entries({}).contains(deep));
  auto slow = entries({"--latency", "0.002"});
  ASSERT_TRUE(slow.contains(deep));
  EXPECT_LT(slow[deep]["step_time"], slow["1f1b"]["step_time"]);
  EXPECT_GT(slow[deep]["peak_activations"], slow["1f1b"]["peak_activations"]);
}

TEST(Cli_Network, File_IsUsedBySimulateAndCompare_AndItsMistakesAreNamed) {
  const TestFolder folder;
  const std::string slow =
      folder.Write("slow.yaml", "nodes: [2, 2]\nbetween: {latency: 3}\nspeeds: [1, 1, 0.5, 1]\n");
  const std::vector<std::string> simulate = {"weft", "simulate",       "gpipe", "--stages",
                                             "4",    "--microbatches", "1"};
  const auto with = [&](const std::string& file) {
    std::vector<std::string> words = simulate;
    words.insert(words.end(), {"--network", file, "-o", "json"});
    return Command::Run(words);
  };
  const CommandResult r = with(slow);
  ASSERT_EQ(r.code, 0) << r.err;
  // Three ranks of 2, one of 4, and a transfer there and back between the nodes.
  EXPECT_DOUBLE_EQ(Json::parse(r.out)["makespan"].get<double>(), 3 * 2 + 4 + 2 * 3);
  const auto refuses = [&](int code, const char* name, const char* text, const char* message) {
    std::vector<std::string> words = simulate;
    words.insert(words.end(), {"--network", folder.Write(name, text)});
    ExpectRefusal(code, words, message);
  };
  refuses(78, "a.yaml", "nodes: [4]\nlinks: prot\n",
          "a.yaml:2: links: unknown kind of links \"prot\"; did you mean \"port\"?");
  refuses(78, "b.yaml", "latency: -1\n", "b.yaml:1: latency: ");
  refuses(78, "c.yaml", "between: {latency: 1}\n", "nodes: [4, 4]");
  refuses(2, "d.yaml", "bandwidth: 10GB\n", "nothing has a size");
  refuses(78, "e.yaml", "speeds: [1, fast]\n", "e.yaml:1: speeds: must be a list");
  refuses(78, "f.yaml", "speeds: [1, 1]\n", "f.yaml: ");
  refuses(78, "g.yaml", "", "g.yaml: is empty");
  const std::string run = GptRun(folder);
  const auto step = [&](const std::string& text) {
    const CommandResult compared = Command::Run({"weft", "compare", run, "--schedules", "1f1b", "--network",
                                                 folder.Write("n.yaml", text), "-o", "json"});
    return List(compared, "schedules")[0]["step_time"].get<double>();
  };
  EXPECT_GT(step("links: port\nbandwidth: 1MB\n"), step("links: port\n"));
  // Some schedule has to be on ranks that the network has.
  ExpectRefusal(
      78,
      {"weft", "compare", run, "--schedules", "1f1b", "--network", folder.Write("n.yaml", "nodes: [1]\n")},
      "n.yaml: network: nodes: the nodes have 1 ranks together; the schedule has 4");
  ExpectRefusal(2, {"weft", "compare", run, "--flops", "0"}, "--flops: must be above 0");
}

TEST(Cli_Network, OfARunFile_CountsWithoutAFlag_AndBeforeAProfiles) {
  const TestFolder folder;
  const std::string plain = GptRun(folder), text = "links: port, bandwidth: 1MB, speeds: [1, 1, 0.5, 1]";
  const auto step = [](const std::string& command, const std::string& file, std::vector<std::string> more) {
    std::vector<std::string> words = {"weft", command, file, "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = Command::Run(words);
    EXPECT_EQ(r.code, 0) << r.err;
    const Json json = Json::parse(r.out);
    if (command == "simulate") return json["period"].get<double>();
    if (command == "plan") return json["step"].get<double>();
    for (const Json& row : json["schedules"]) {
      if (row["chosen"] == true) return row["step_time"].get<double>();
    }
    ADD_FAILURE() << "no row of the run file's schedule";
    return 0.0;
  };
  const std::string flag = folder.Write("network.yaml", "{" + text + "}\n");
  const std::string other = folder.Write("other.yaml", "speeds: [1, 1, 1, 0.1]\n");
  const std::vector<std::string> one_family = {"--workers", "4", "--schedule", "1f1b"};
  std::map<std::string, double> by_flag, by_other, without;
  for (const std::string command : {"simulate", "compare", "plan"}) {
    std::vector<std::string> words = command == "plan" ? one_family : std::vector<std::string>();
    without[command] = step(command, plain, words);
    words.insert(words.end(), {"--network", flag});
    by_flag[command] = step(command, plain, words);
    words.back() = other;
    by_other[command] = step(command, plain, words);
    EXPECT_GT(by_flag[command], without[command]) << command;
    EXPECT_NE(by_other[command], by_flag[command]) << command;
  }
  const std::string file = GptRun(folder, "network: {" + text + "}\n");
  Json profile = {{"layers", Json::array()}, {"network", {{"speeds", {1, 1, 1, 0.1}}}}};
  for (int l = 0; l < 6; ++l) profile["layers"].push_back({{"forward", 1}, {"output_bytes", 1000}});
  const std::string profiled = folder.Write("profile.json", profile.dump());
  for (const std::string command : {"simulate", "compare", "plan"}) {
    std::vector<std::string> words = command == "plan" ? one_family : std::vector<std::string>();
    EXPECT_EQ(step(command, file, words), by_flag[command]) << command;
    words.insert(words.end(), {"--network", other});
    EXPECT_EQ(step(command, file, words), by_other[command]) << command << ": the flag goes first";
    words.insert(words.end(), {"--profile", profiled});
    const double both = step(command, file, words);
    words.erase(words.end() - 4, words.end() - 2);
    EXPECT_LT(step(command, file, words), both) << command << ": the run file goes before the profile";
    GptRun(folder);
    EXPECT_EQ(step(command, file, words), both) << command << ": the profile has the same network";
    GptRun(folder, "network: {" + text + "}\n");
  }
  ExpectRefusal(78, {"weft", "compare", GptRun(folder, "network:\n  bandwidth: -1\n")},
                "run.yaml:7: network.bandwidth: must be a number from 1e-30");
  ExpectRefusal(78, {"weft", "simulate", GptRun(folder, "network: {speeds: [1, 1]}\n")},
                "run.yaml:6: network: speeds: there are 2; the schedule has 4 ranks");
  folder.Write("profile.json", R"({"layers": [{"forward": 1}], "network": {"nodes": [0]}})");
  ExpectRefusal(78,
                {"weft", "simulate", "gpipe", "--stages", "1", "--microbatches", "1", "--profile", profiled},
                "profile.json: network.nodes[0]: a node has at least 1 rank, not 0");
}

// A backward is two forwards, and begins with the forward once more.
TEST(Cli_Compare, Recomputation_TakesTheTimeOfAForwardMore) {
  const TestFolder folder;
  const CommandResult r = Command::Run({"weft", "compare", GptRun(folder), "--schedules",
                                        "ddp,ranks=1,ddp,ranks=1,activations=recompute", "-o", "json"});
  std::map<std::string, double> times;
  for (const Json& entry : List(r, "schedules")) {
    if (entry["fits"]) times[entry["schedule"]] = entry["step_time"];
  }
  EXPECT_NEAR(times["ddp,ranks=1,activations=recompute"] / times["ddp,ranks=1"], 4.0 / 3, 1e-6);
}

TEST(Cli_Compare, Vary_ShowsEachScheduleAtTheBestOfItsSizes) {
  const TestFolder folder;
  const std::string file = folder.Write("few.yaml",
                                        "model: {gpt: {layers: 4, width: 32, heads: 2, context: 32}}\n"
                                        "data: {text: {path: not_here.txt}}\n"
                                        "train: {steps: 3, batch: 8, microbatches: 4}\n"
                                        "stages: 4\nschedule: 1f1b\nmemory: 1040KB\n");
  const auto rows = [&](const std::string& vary) {
    std::vector<std::string> words = {"weft", "compare", file, "-o", "json"};
    if (!vary.empty()) words.insert(words.end(), {"--vary", vary});
    return List(Command::Run(words), "schedules");
  };
  std::map<std::string, Json> plain;
  for (const Json& entry : rows("")) plain[entry["schedule"]] = entry;
  std::map<std::string, int> seen;
  int faster = 0, others = 0, recomputing = 0;
  for (const Json& entry : rows("microbatches,cuts,activations")) {
    const std::string text = entry["schedule"], name = text.substr(0, text.find(",activations="));
    if (!entry["chosen"]) {
      EXPECT_EQ(++seen[name], 1) << "one row a schedule: " << entry;
    }
    recomputing += entry["fits"] && text != name;
    if (!entry["fits"]) continue;
    others += entry["microbatches"] != 4 || entry["stages"] != 4 || text != name;
    if (!plain.contains(name) || !plain[name]["fits"] || entry["chosen"]) continue;
    EXPECT_LE(entry["step_time"], plain[name]["step_time"]) << entry;
    faster += entry["step_time"] < plain[name]["step_time"];
  }
  EXPECT_GT(faster, 3);
  EXPECT_GT(others, 3);
  EXPECT_GT(recomputing, 3) << "the budget is too small for what they retain";
  // The command below the table takes the sizes of the first row.
  const CommandResult table = Command::Run({"weft", "compare", file, "--vary", "microbatches,cuts"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("micro-batches"));
  ExpectUsageError({"weft", "compare", file, "--vary", "batch"}, "--vary");
  ExpectUsageError({"weft", "compare", file, "--vary", "cuts", "--measure"}, "--vary");
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
  // The budget that is said to be enough is enough.
  const CommandResult json = Command::Run(
      {"weft", "compare", file, "--memory", std::to_string(static_cast<int64_t>(ddp / 2)), "-o", "json"});
  int too_large = 0;
  for (const Json& entry : List(json, "schedules")) {
    if (entry["fits"] || !entry["valid"]) continue;
    ++too_large;
    ASSERT_TRUE(entry.contains("memory_that_fits")) << entry;
    const CommandResult enough =
        Command::Run({"weft", "simulate", file, "--schedule", entry["schedule"], "--memory",
                      std::to_string(entry["memory_that_fits"].get<int64_t>()), "-o", "json"});
    EXPECT_EQ(enough.code, 0) << entry << enough.err;
  }
  EXPECT_GT(too_large, 0);
}

TEST(Cli_Compare, Ranks_EachFamilyTakesTheStagesThatItNeeds) {
  const TestFolder folder;
  const std::string file = CompareRun(folder, "1f1b");
  const CommandResult r = Command::Run({"weft", "compare", file, "--ranks", "4", "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::map<std::string, Json> entries;
  for (const Json& entry : List(r, "schedules")) {
    entries[entry["schedule"]] = entry;
    if (!entry["fits"]) continue;
    EXPECT_EQ(entry["ranks"], 4) << entry;
    EXPECT_DOUBLE_EQ(entry["rank_time"], 4 * entry["step_time"].get<double>());
  }
  for (const char* name : {"1f1b", "gpipe", "zb_h1", "ddp,ranks=4", "lpp,groups=2,ranks=2", "dualpipe"}) {
    EXPECT_EQ(entries[name]["stages"], 4) << name << entries[name];
  }
  for (const char* name : {"interleaved,ranks=4", "zb_v", "v_half", "v_min", "breadth_first,ranks=4"}) {
    EXPECT_EQ(entries[name]["stages"], 8) << name << entries[name];
  }
  EXPECT_THAT(entries["fsdp"]["reason"].get<std::string>(), HasSubstr("takes 32 ranks"));
  EXPECT_EQ(entries["1f1b"]["chosen"], true);
  // Fewer layers than stages.
  const CommandResult many = Command::Run({"weft", "compare", file, "--ranks", "16", "-o", "json"});
  bool listed = false;
  for (const Json& entry : List(many, "schedules")) {
    if (entry["schedule"] != "zb_v") continue;
    listed = true;
    EXPECT_THAT(entry["reason"].get<std::string>(),
                HasSubstr("needs 32 stages on 16 ranks; the model has 16"));
  }
  EXPECT_TRUE(listed) << many.out;
}

TEST(Cli_Compare, MoreStagesThanLayers_ExitTwoWithoutATable) {
  const TestFolder folder;
  const std::string file = CompareRun(folder, "1f1b");
  const std::string refusal = "--stages: 99 stages are more than the model's";
  ExpectUsageError({"weft", "compare", file, "--stages", "99"}, refusal);
  folder.Write("not_here.txt", RandomLetters(100000));  // measuring reads the data
  ExpectUsageError({"weft", "compare", file, "--stages", "99", "--measure"}, refusal);
}

TEST(Cli_Compare, Schedules_OnlyThoseThatWereNamedBesideTheRunFiles) {
  const TestFolder folder;
  const std::string file = GptRun(folder);
  const CommandResult r =
      Command::Run({"weft", "compare", file, "--schedules", "ddp,ranks=2,custom,ranks=2,compute=min(s,3) % W",
                    "--schedules", "lpp", "--stages", "2", "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::map<std::string, Json> entries;
  for (const Json& entry : List(r, "schedules")) entries[entry["schedule"]] = entry;
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries["1f1b"]["stages"], 2);
  EXPECT_EQ(entries["ddp,ranks=2"]["ranks"], 2);
  EXPECT_TRUE(entries["custom,ranks=2,compute=min(s,3) % W"]["fits"]);
  EXPECT_THAT(entries["lpp"]["reason"].get<std::string>(),
              HasSubstr("needs `groups` and `ranks`, as in lpp,groups=2,ranks=4"));
  for (const char* also : {"--stages", "--measure"}) {
    std::vector<std::string> words = {"weft", "compare", file, "--schedules", "gpipe,1f1c", also};
    if (words.back() == "--stages") words.emplace_back("2");
    ExpectUsageError(words, "--schedules: unknown schedule \"1f1c\"; did you mean \"1f1b\"?");
  }
  const CommandResult table =
      Command::Run({"weft", "compare", file, "--stages", "1", "--schedules", "gpipe"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("1 stage,"), HasSubstr("time x ranks"),
                               HasSubstr("as a picture: weft simulate ")));
  ExpectUsageError({"weft", "compare", file, "--profile", "p.json", "--flops", "3"}, "--flops");
}

TEST(Cli_Compare, PictureOfTheFirst_IsOfTheSameSimulation) {
  const TestFolder folder;
  const std::string file = GptRun(folder);
  const std::string network = folder.Write("network.yaml", "bandwidth: 1e6\nlatency: 0.1\n");
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{},
                                             {"--flops", "123456789", "--bandwidth", "1e6"},
                                             {"--flops", "1e7", "--network", network, "--latency", "0.2"}}) {
    std::vector<std::string> words = {"weft", "compare", file, "--schedules", "gpipe"};
    words.insert(words.end(), flags.begin(), flags.end());
    const std::string table = Command::Run(words).out;
    std::vector<std::string> json = words;
    json.insert(json.end(), {"-o", "json"});
    const Json first = Json::parse(Command::Run(json).out)["schedules"][0];
    const std::string before = "as a picture: ", after = " -o svg";
    const size_t begin = table.find(before) + before.size();
    std::vector<std::string> picture = absl::StrSplit(table.substr(begin, table.find(after) - begin), ' ');
    picture.insert(picture.end(), {"-o", "json"});
    const CommandResult drawn = Command::Run(picture);
    ASSERT_EQ(drawn.code, 0) << drawn.err;
    EXPECT_DOUBLE_EQ(Json::parse(drawn.out)["period"], first["step_time"]) << table;
  }
  ExpectUsageError({"weft", "simulate", file, "--flops", "1e7", "--forward", "2"}, "--flops has no effect");
  ExpectUsageError({"weft", "simulate", "gpipe", "--stages", "2", "--microbatches", "2", "--flops", "1e7"},
                   "--flops has no effect");
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
                      {"idle_by_cause",
                       {{"dependency", 3.0},
                        {"transfer", 0.0},
                        {"limit", 3.0},
                        {"memory", 0.0},
                        {"reduce", 0.0},
                        {"no_work", 0.0}}},
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

double Makespan(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  words.insert(words.end(), {"-o", "json"});
  const CommandResult r = Command::Run(words);
  EXPECT_EQ(r.code, 0) << r.err;
  return r.code == 0 ? Json::parse(r.out)["makespan"].get<double>() : 0;
}

TEST(Cli_Simulate, Backward_IsTheWholeOneInEveryFamily) {
  const auto makespan = [](const char* schedule, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"weft", "simulate", schedule, "--stages", "4", "--microbatches", "8"});
    return Makespan(flags);
  };
  for (const char* split : {"zb_h1", "zb_h2", "zb_v", "v_half", "dualpipe"}) {
    SCOPED_TRACE(split);
    EXPECT_DOUBLE_EQ(makespan(split, {"--backward", "10"}),
                     makespan(split, {"--backward-input", "5", "--backward-weight", "5"}));
    EXPECT_DOUBLE_EQ(makespan(split, {}), makespan(split, {"--backward", "1"}));
    EXPECT_GT(makespan(split, {"--backward", "10"}), 4 * makespan(split, {}));
    EXPECT_DOUBLE_EQ(makespan(split, {"--backward", "2,2,2,2"}), makespan(split, {"--backward", "2"}));
  }
  // A schedule that splits its backwards to idle less does so in the first command that anybody types.
  EXPECT_LT(makespan("zb_h1", {}), makespan("1f1b", {}));
  EXPECT_DOUBLE_EQ(makespan("1f1b", {"--backward-input", "1", "--backward-weight", "1"}),
                   makespan("1f1b", {"--backward", "2"}));
}

TEST(Cli_Simulate, FlagsThatCouldChangeNothing_AreRefused) {
  ExpectUsageError(Simulate({"--memory", "1KB"}), "--memory has no effect, because nothing has a size");
  ExpectUsageError(Simulate({"--bandwidth", "1KB"}), "--bandwidth has no effect");
  ExpectUsageError(Simulate({"--jobs"}), "add -o json");
  ExpectUsageError(Simulate({"--communication", "-o", "svg"}), "--communication is for");
  ExpectUsageError(Simulate({"--backward-input", "2"}), "--backward-input has no effect, because 1f1b");
  ExpectUsageError(Simulate({"--backward-weight", "5"}), "--backward-weight has no effect");
  ExpectUsageError(Simulate({"--backward", "2", "--backward-input", "1", "--backward-weight", "1"}),
                   "--backward-input has no effect");
  ExpectUsageError(Simulate({"--overlapped", "5"}), "--overlapped has no effect, because 1f1b");
  ExpectUsageError(Simulate({"--reduce", "3"}), "--reduce has no effect, because 1f1b");
  EXPECT_EQ(Command::Run({"weft", "simulate", "1f1b", "zb_h1", "--stages", "2", "--microbatches", "4",
                          "--backward-input", "2", "-o", "memory"})
                .code,
            0)
      << "one of them splits the backward";
  for (const char* flag : {"--nvtx", "--no-graphs"}) {
    ExpectUsageError({"weft", "train", "run.yaml", flag}, absl::StrCat(flag, ": has no effect on the CPU"));
  }
  ExpectUsageError({"weft", "train", "run.yaml", "--reference", "--processes", "3"}, "--processes");
  ExpectUsageError(Simulate({"--schedule", "gpipe"}), "--schedule replaces the schedule of a run file");
  const TestFolder folder;
  const std::string profile = folder.Write("p.json", R"({"stages": [{"forward": 1}, {"forward": 1}]})");
  ExpectUsageError(Simulate({"--profile", profile, "--forward", "2"}), "not both");
  ExpectUsageError(Simulate({"--profile", profile, "--weight", "2"}), "not both");
}

TEST(Cli_Simulate, ThroughputBound_StandsOnlyWhereItHolds) {
  const auto bound = [](const std::string& schedule, const std::string& stages) {
    const CommandResult table =
        Command::Run({"weft", "simulate", schedule, "--stages", stages, "--microbatches", "4"});
    const CommandResult json =
        Command::Run({"weft", "simulate", schedule, "--stages", stages, "--microbatches", "4", "-o", "json"});
    EXPECT_EQ(json.code, 0) << json.err;
    const Json parsed = Json::parse(json.code == 0 ? json.out : "{\"throughput_bound\": -1}");
    const double value = parsed["throughput_bound"];
    EXPECT_EQ(table.out.find("at most") != std::string::npos, value < 1) << table.out;
    if (json.code == 0) {
      EXPECT_LE(parsed["throughput_per_rank"], value) << schedule;
    }
    return value;
  };
  EXPECT_DOUBLE_EQ(bound("custom,ranks=4,compute=s,limit=1", "4"), 0.25);
  // A backward on another rank than its forward; several stages on one rank.
  EXPECT_DOUBLE_EQ(bound("custom,ranks=4,compute=k==forward ? s%W : (s+1)%W,limit=1", "4"), 1);
  EXPECT_DOUBLE_EQ(bound("v_min", "8"), 1);
}

TEST(Cli_Simulate, ManyRanks_AreNotAllPrinted) {
  const CommandResult r = Command::Run(
      {"weft", "simulate", "custom,ranks=400000,compute=s", "--stages", "4", "--microbatches", "8"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_LT(std::count(r.out.begin(), r.out.end(), '\n'), 100);
  EXPECT_THAT(r.out, HasSubstr("more ranks"));
  ExpectUsageError({"weft", "simulate", "custom,ranks=400000,compute=s", "--stages", "4", "--microbatches",
                    "8", "-o", "svg"},
                   "too many to draw");
  ExpectUsageError({"weft", "simulate", "custom,ranks=400000,compute=s", "--stages", "4", "--microbatches",
                    "8", "--activation", "1KB", "--bandwidth", "1KB"},
                   "more links than can be kept apart");
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
  for (const std::string& schedule : {path, std::string("zb_h1")})
    EXPECT_EQ(Json::parse(simulate(schedule, "json").out)["makespan"], 19.0) << schedule;
  ExpectUsageError({"weft", "simulate", path, "--stages", "4", "--microbatches", "9"},
                   "has 4 stages and 8 micro-batches");
  const auto one = [](const std::string& file) {
    return std::vector<std::string>{"weft", "simulate", file, "--stages", "1", "--microbatches", "1"};
  };
  const CommandResult lowered = Command::Run(one(folder.Write("communicates.csv", "0F0,0SEND_F0,0B0\n")));
  EXPECT_EQ(lowered.code, 0) << lowered.err;
  ExpectBadFile(one(folder.Write("shards.csv", "0F0,0UNSHARD\n")), "row 1, cell 2");
  ExpectBadFile(one(folder / "nothing.csv"), "cannot read");
  ExpectBadFile(one(folder.path()), "cannot read");
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
  std::vector<double> starts;
  for (const Json& job : List(order, "jobs")) {
    if (job["kind"] == "forward" && job["stage"] == 1 && job["microbatch"] == 0)
      starts.push_back(job["start"]);
  }
  EXPECT_THAT(starts, ElementsAre(0.0));
  const auto read = [&](const std::string& text) {
    return std::vector<std::string>{"weft", "simulate", folder.Write("bad.json", text)};
  };
  ExpectBadFile(read("{"), "is not JSON");
  ExpectBadFile(read("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
                "is nested more than 32 levels deep");
  ExpectBadFile(read("{\"traceEvents\": []}"), "it has no jobs");
  ExpectBadFile(read("{\"traceEvents\": [{\"ph\": \"M\"}, {\"ph\": \"X\", \"cat\": \"forward\", "
                     "\"ts\": 0, \"dur\": 1, \"args\": {\"rank\": -1, \"step\": 0, \"stage\": 0, "
                     "\"microbatch\": 0}}]}"),
                "event 2 is not a job");
  ExpectBadFile({"weft", "simulate", folder / "nothing.json"}, "cannot read");
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
  ExpectBadFile({"weft", "simulate", wrong, "--stages", "4", "--microbatches", "8"},
                "wrong.yaml:3: custom: compute: column 5");
  ExpectUsageError({"weft", "simulate", wrong}, "has no sizes");
  ExpectBadFile({"weft", "simulate", folder.Write("empty.yaml", ""), "--stages", "4", "--microbatches", "8"},
                "empty.yaml: is empty");
  ExpectUsageError({"weft", "simulate", "1f1b"}, "--stages and --microbatches are required");
}

// The gallery's pages say this of their files.
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

// The page says that the word is the schedule of the file, whose `priority` decides.
TEST(Cli_Simulate, FormulasInOneWordOfTheGallery_AreThoseOfItsFile) {
  const std::string gallery = std::string(std::getenv("WEFT_SOURCE")) + "/docs/schedules/";
  const std::string page = ReadWholeFile(gallery + "custom.md"), before = "weft simulate \"";
  const size_t begin = page.find(before) + before.size();
  ASSERT_GE(begin, before.size());
  const std::string word = page.substr(begin, page.find('"', begin) - begin);
  const auto jobs = [](const std::string& schedule) {
    const CommandResult r = Command::Run(
        {"weft", "simulate", schedule, "--stages", "8", "--microbatches", "8", "--jobs", "-o", "json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.code == 0 ? r.out : "{\"jobs\": 0}")["jobs"];
  };
  EXPECT_EQ(jobs(word), jobs(gallery + "custom_lpp.yaml"));
}

TEST(Cli_Simulate, RunFile_HasItsModelsTimesAndSizesAsCompareHas) {
  const TestFolder folder;
  const std::string run = GptRun(folder);
  const CommandResult simulated = Command::Run({"weft", "simulate", run, "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  const Json one = Json::parse(simulated.out);
  const CommandResult compared =
      Command::Run({"weft", "compare", run, "--schedules", "1f1b,gpipe", "-o", "json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  const Json rows = Json::parse(compared.out)["schedules"];
  ASSERT_EQ(rows.size(), 2u) << rows;
  EXPECT_EQ(one["time_unit"], "1e+09 FLOPs");
  for (const Json& row : rows) {
    const CommandResult r =
        Command::Run({"weft", "simulate", run, "--schedule", row["schedule"], "-o", "json"});
    ASSERT_EQ(r.code, 0) << r.err;
    const Json same = Json::parse(r.out);
    EXPECT_EQ(row["step_time"], same["period"]) << row;
    EXPECT_EQ(row["bubble_ratio"], same["bubble_ratio"]) << row;
    if (row["schedule"] == "1f1b") {
      EXPECT_EQ(one, same);
    }
  }
  EXPECT_GT(one["rank_stats"][0]["held_bytes"], 0);
  EXPECT_THAT(Command::Run({"weft", "simulate", run}).out, HasSubstr("times: the model's counted FLOPs"));
  // Times of one's own.
  EXPECT_EQ(Makespan({"weft", "simulate", run, "--forward", "1"}), 22.0);
  ExpectUsageError({"weft", "simulate", run, "--activation", "1KB"}, "the sizes, follow from its model");
  ExpectUsageError({"weft", "simulate", run, "--stages", "99"}, "more than the model's 6 layers");
  ExpectUsageError({"weft", "simulate", run, "--microbatches", "3"}, "does not divide the batch");
}

TEST(Cli_Simulate, RunFileWithMemory_IsHeldToIt) {
  const TestFolder folder;
  const std::string run = GptRun(folder, "memory: 1KB\n");
  const CommandResult none = Command::Run({"weft", "simulate", run});
  EXPECT_EQ(none.code, 78) << "the file asks for what cannot be";
  EXPECT_THAT(none.err, HasSubstr("memory: rank 0 needs"));
  EXPECT_EQ(Command::Run({"weft", "simulate", run, "--memory", "1GB"}).code, 0);
  EXPECT_EQ(Command::Run({"weft", "simulate", run, "--memory", "2KB"}).code, 1)
      << "what was asked for does not fit";
  ExpectBadFile({"weft", "simulate", folder / "none.yaml"}, "none.yaml");
  ExpectBadFile({"weft", "simulate", run, "--profile", folder / "none.json"}, "cannot read");
  ExpectUsageError({"weft", "simulate", run, "--schedule", "1f1"}, "did you mean");
}

TEST(Cli_Simulate, OtherForms_LookLikeWhatTheyAre) {
  EXPECT_THAT(Command::Run(Simulate({})).out,
              AllOf(HasSubstr("makespan    22 time units"), HasSubstr("peak act.")));
  EXPECT_THAT(Command::Run(Simulate({"-o", "svg"})).out, ::testing::StartsWith("<svg "));
  EXPECT_THAT(Command::Run(Simulate({"-o", "csv"})).out, ::testing::StartsWith("0F0,0F1,0F2,0F3,0B0,"));
  const Json trace = Json::parse(Command::Run(Simulate({"-o", "trace"})).out);
  EXPECT_GT(trace["traceEvents"].size(), 64u);
}

TEST(Cli_Simulate, SoManyStepsThatItTakesLong_SaysHowToStopIt) {
  Command long_one(
      {"weft", "simulate", "1f1b", "--stages", "4", "--microbatches", "8", "--steps", "16000000"});
  ASSERT_TRUE(long_one.WaitFor("512000000 forward jobs takes a minute or more; Ctrl-C stops it", 60));
  long_one.Signal(SIGINT);
  EXPECT_EQ(long_one.Wait(60).signal, SIGINT);
}

TEST(Cli_Simulate, FullDisk_SaysSoAndFails) {
  const CommandResult result = Command::Run(
      {"/bin/sh", "-c", "\"$0\"/weft simulate 1f1b --stages 4 --microbatches 8 -o svg > /dev/full",
       getenv("WEFT_BIN")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot write to standard output: No space left"));
}

// Neither the records of a run nor a plan can hold such a path.
TEST(Cli_Paths, PathThatIsNotUtf8_IsRefusedBeforeItGetsIntoARecord) {
  const TestFolder folder;
  const std::string good = WriteSmallRun(folder);
  const CommandResult out = Command::Run({"weft", "train", good, "--out", folder / "out\xff"});
  EXPECT_EQ(out.code, 2);
  EXPECT_THAT(out.err, AllOf(HasSubstr("--out"), HasSubstr("out\\xff\" is not UTF-8")));
  const std::string file = folder / "run\xff.yaml";
  std::filesystem::copy_file(good, file);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"weft", "train", file, "--out", folder / "out"},
                                             {"weft", "eval", file, "--checkpoint", folder / "out"},
                                             {"weft", "plan", file, "--workers", "2", "-o", "yaml"}}) {
    const CommandResult result = Command::Run(command);
    EXPECT_EQ(result.code, 78) << command[1];
    EXPECT_THAT(result.err, HasSubstr("run\\xff.yaml\" is not UTF-8")) << command[1];
  }
}

// Other files may have any path, and JSON holds only UTF-8.
TEST(Cli_Json, PathThatIsNotUtf8_IsPrintedWithReplacementCharacters) {
  const TestFolder folder;
  const CommandResult doctor = Command::Run(
      {"weft", "doctor", "-o", "json", "--tls", folder / "no\xff", "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(doctor.code, 1) << doctor.err;
  const auto findings = Json::parse(doctor.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [&](const Json& finding) {
    return finding["name"] == "certificates" && finding["found"] == folder / "no\uFFFD";
  })) << doctor.out;
  const std::string file = folder.Write("trace\xff.json", Command::Run(Simulate({"-o", "trace"})).out);
  const CommandResult trace = Command::Run({"weft", "trace", file, "-o", "json"});
  EXPECT_EQ(trace.code, 0) << trace.err;
  EXPECT_THAT(trace.out, HasSubstr("trace\uFFFD.json"));
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
}  // namespace weft::cli_test
