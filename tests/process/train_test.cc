// `weft train` as a whole: files, equal results, Ctrl-C, lost workers, disks that cannot be written.
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::train_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int kSeconds = 120;  // for one training on a machine that does much else

const char* const kLong =
    "{steps: 1000000, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}";

std::vector<Json> Steps(const std::string& folder) {
  std::istringstream lines(ReadWholeFile(folder + "/steps.jsonl"));
  std::vector<Json> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line));
  return steps;
}

// The bytes of every stage's tensors.
std::vector<std::string> Weights(const std::string& folder, int stages) {
  std::vector<std::string> weights;
  for (int s = 0; s < stages; ++s) {
    weights.push_back(ReadWholeFile(folder + "/stage0" + std::to_string(s) + ".safetensors"));
  }
  return weights;
}

// A training that goes on until it is stopped, with its temporary folder inside `folder`.
std::vector<std::string> LongRun(const TestFolder& folder, const std::string& out,
                                 const std::string& restarts = "3") {
  fs::create_directories(folder / "tmp");
  return {"/usr/bin/env",
          "TMPDIR=" + (folder / "tmp"),
          std::string(getenv("WEFT_BIN")) + "/weft",
          "train",
          WriteSmallRun(folder, {{"train", kLong}, {"restarts", restarts}}),
          "--out",
          folder / out,
          "--processes",
          "2"};
}

bool WaitForStep(const std::string& out) {
  for (int i = 0; i < kSeconds * 20; ++i) {
    if (!ReadWholeFile(out + "/steps.jsonl").empty()) return true;
    usleep(50'000);
  }
  return false;
}

TEST(Train_SmallRun, Finishes_LeavesEveryFileOfTheContract) {
  const TestFolder folder;
  const std::string out = folder / "out";
  const CommandResult result =
      Command::Run({"weft", "train", WriteSmallRun(folder), "--processes", "2", "--out", out}, kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("small: 3 steps"), HasSubstr("rank"), HasSubstr(out + "/summary.json")));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.err, Not(HasSubstr("\x1b")));
  const Json summary = Json::parse(ReadWholeFile(out + "/summary.json"));
  EXPECT_EQ(summary["steps"], 3);
  EXPECT_EQ(summary["schedule"], "1f1b");
  EXPECT_EQ(summary["ranks"], 4);
  EXPECT_EQ(summary["processes"], 2);
  EXPECT_GT(summary["predicted_step_seconds"], 0);
  EXPECT_GE(summary["step_seconds"]["p99"], summary["step_seconds"]["p50"]);
  EXPECT_GT(summary["bytes_sent"]["activation"], 0);
  ASSERT_EQ(summary["peak_bytes"].size(), 4u);
  EXPECT_GT(summary["peak_bytes"][3]["weights"], 0);
  ASSERT_EQ(summary["idle_seconds"].size(), 4u);
  // Idle time and busy time are the wall time of each rank.
  for (int rank = 0; rank < 4; ++rank) {
    double sum = 0;
    for (const char* field : {"idle_seconds", "busy_seconds"}) {
      for (const auto& part : summary[field][rank].items()) sum += part.value().get<double>();
    }
    EXPECT_NEAR(sum, summary["wall_seconds"][rank].get<double>(), 1e-3);
  }
  const std::vector<Json> steps = Steps(out);
  ASSERT_EQ(steps.size(), 3u);
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(steps[t]["step"], t);
    EXPECT_GT(steps[t]["seconds"], 0);
  }
  EXPECT_EQ(steps[2]["loss"], summary["final_loss"]);
  EXPECT_LT(steps[2]["loss"], steps[0]["loss"]);
  const Json trace = Json::parse(ReadWholeFile(out + "/trace.json"));
  // The trace has idle times and transfers beside the jobs.
  int jobs = 0, planned = 0, activations = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    planned += event["cat"] == "planned";
    jobs += event["cat"] != "planned" && event["cat"] != "idle" && event["cat"] != "transfer";
    const bool activation = event["ph"] == "X" && event["cat"] == "transfer" &&
                            event.dump().find("activation") != std::string::npos;
    // One of 4 samples of 32 tokens, 32 values each.
    EXPECT_TRUE(!activation || event["args"]["bytes"] == 4 * 32 * 32 * 4) << event;
    activations += activation ? 1 : 0;
  }
  EXPECT_GT(activations, 0);
  EXPECT_EQ(jobs, 3 * (4 * 4 * 2 + 4));
  EXPECT_EQ(planned, jobs) << "each job stands beside its plan";
  EXPECT_THAT(ReadWholeFile(out + "/timeline.svg"), HasSubstr("measured, steps 0 to 2 of 3"));
  EXPECT_NE(Weights(out + "/checkpoint", 4), Weights(out + "/checkpoint-0", 4));
}

TEST(Explain, EndedRun_NamesDifferencesThatAddUp) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder), out = folder / "out";
  ASSERT_EQ(Command::Run({"weft", "train", file, "--out", out}, kSeconds).code, 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>(), std::vector<std::string>{"--step", "2"}}) {
    std::vector<std::string> command = {"weft", "explain", out, "-o", "json"};
    command.insert(command.end(), more.begin(), more.end());
    const CommandResult explained = Command::Run(command);
    ASSERT_EQ(explained.code, 0) << explained.err;
    const Json json = Json::parse(explained.out);
    double sum = 0;
    for (const Json& difference : json["differences"]) sum += difference["seconds"].get<double>();
    EXPECT_NEAR(sum, json["difference"].get<double>(), 1e-9);
    EXPECT_NEAR(sum, json["measured"].get<double>() - json["planned"].get<double>(), 1e-9);
    if (!more.empty()) {
      EXPECT_EQ(json["first_step"], 2);
    }
  }
  const CommandResult table = Command::Run({"weft", "explain", out});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("planned "), HasSubstr("measured less planned")));
  const CommandResult no_step = Command::Run({"weft", "explain", out, "--step", "9"});
  EXPECT_EQ(no_step.code, 2);
  EXPECT_THAT(no_step.err, HasSubstr("has no step 9"));
  const CommandResult no_run = Command::Run({"weft", "explain", folder / "none"});
  EXPECT_EQ(no_run.code, 78);
  EXPECT_THAT(no_run.err, HasSubstr("no summary.json"));
}

// The training itself is asked, by its folder.
TEST(Explain, TrainingThatGoesOn_NamesDifferencesOfItsStepsSoFar) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder, {{"train", kLong}}), out = folder / "out";
  Command training({"weft", "train", file, "--out", out, "--processes", "2"});
  for (int i = 0; i < 600 && Steps(out).size() < 20; ++i) usleep(100'000);
  const CommandResult table = Command::Run({"weft", "explain", out});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("measured less planned"));
  const CommandResult trace =
      Command::Run({"weft", "trace", out, "-o", "json", "--perfetto", folder / "now.json"});
  ASSERT_EQ(trace.code, 0) << trace.err;
  EXPECT_GE(Json::parse(trace.out)["last_step"], 19);
  EXPECT_GT(Json::parse(trace.out)["transfers"], 0);
  EXPECT_THAT(ReadWholeFile(folder / "now.json"), HasSubstr("\"cat\":\"idle\""));
  EXPECT_FALSE(fs::exists(out + "/trace.json")) << "it goes on";
  training.Signal(SIGINT);
  EXPECT_EQ(training.Wait(60).code, 130);
  // It has left what its last steps looked like, idle times and transfers too.
  EXPECT_FALSE(Json::parse(ReadWholeFile(out + "/run.json")).contains("coordinator"));
  const CommandResult left = Command::Run({"weft", "trace", out, "-o", "json"});
  EXPECT_GT(Json::parse(left.out)["transfers"], 0);
  EXPECT_THAT(ReadWholeFile(out + "/trace.json"), HasSubstr("\"cat\":\"idle\""));
  EXPECT_EQ(Command::Run({"weft", "explain", out}).code, 0);
}

TEST(Train_Reference, SameRun_SameBitsAndLosses) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder, {{"schedule", "{lpp: {groups: 2, ranks: 2}}"}});
  ASSERT_EQ(Command::Run({"weft", "train", file, "--out", folder / "a"}, kSeconds).code, 0);
  const CommandResult result =
      Command::Run({"weft", "train", file, "--out", folder / "b", "--reference"}, kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("as one plain loop"));
  for (const char* checkpoint : {"/checkpoint-0", "/checkpoint"}) {
    const auto weights = Weights((folder / "a") + checkpoint, 4);
    EXPECT_THAT(weights, Each(Not(IsEmpty())));
    EXPECT_EQ(weights, Weights((folder / "b") + checkpoint, 4));
  }
  const std::vector<Json> a = Steps(folder / "a"), b = Steps(folder / "b");
  ASSERT_EQ(a.size(), 3u);
  ASSERT_EQ(b.size(), 3u);
  for (int t = 0; t < 3; ++t) EXPECT_NEAR(a[t]["loss"].get<double>(), b[t]["loss"].get<double>(), 1e-6);
  EXPECT_EQ(Json::parse(ReadWholeFile((folder / "b") + "/summary.json"))["schedule"], "reference");
}

TEST(Train_Out, OfAnEarlierRunOverwritten_ItsFilesReplacedAndOthersKept) {
  const TestFolder folder;
  const std::string out = folder / "out";
  fs::create_directories(out + "/checkpoint");
  for (const char* name : {"/summary.json", "/trace.json", "/notes.txt", "/checkpoint/stage07.safetensors"}) {
    std::ofstream(out + name) << "old";
  }
  const std::string file = WriteSmallRun(folder, {{"stages", "2"}});
  ASSERT_EQ(
      Command::Run({"weft", "train", file, "--overwrite", "--out", out, "--processes", "1"}, kSeconds).code,
      0);
  EXPECT_EQ(ReadWholeFile(out + "/notes.txt"), "old");
  EXPECT_FALSE(fs::exists(out + "/checkpoint/stage07.safetensors"));
  EXPECT_EQ(Json::parse(ReadWholeFile(out + "/summary.json"))["stages"], 2);
  EXPECT_THAT(ReadWholeFile(out + "/trace.json"), HasSubstr("traceEvents"));
}

TEST(Train_Out, CannotBeWritten_ExitSeventyEightAndNamesIt) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder);
  folder.Write("file", "");
  const CommandResult result = Command::Run({"weft", "train", file, "--out", folder / "file/out"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, AllOf(HasSubstr(folder / "file/out"), HasSubstr("--out")));
}

TEST(Train_Processes, MoreThanRanks_ExitTwo) {
  const TestFolder folder;
  const CommandResult result =
      Command::Run({"weft", "train", WriteSmallRun(folder), "--processes", "5", "--out", folder / "out"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--processes 5 is more than the 4 ranks"));
}

TEST(Train_Metrics, NoAddress_ExitTwo) {
  const TestFolder folder;
  for (const char* const address : {"foo", "unix:/tmp/socket"}) {
    const CommandResult result =
        Command::Run({"weft", "train", WriteSmallRun(folder), "--metrics", address, "--out", folder / "out"});
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("--metrics"), HasSubstr("HOST:PORT")));
  }
}

TEST(Train_Until, MoreStepsThanTheFile_ExitTwo) {
  const TestFolder folder;
  const CommandResult result =
      Command::Run({"weft", "train", WriteSmallRun(folder), "--until", "99999", "--out", folder / "out"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("it cannot make 99999"));
}

class StopSignal : public ::testing::TestWithParam<int> {};

TEST_P(StopSignal, DuringTraining_EverythingEndsAndNothingIsLeft) {
  const TestFolder folder;
  Command train(LongRun(folder, "out"));
  ASSERT_TRUE(WaitForStep(folder / "out"));
  const std::vector<pid_t> workers = Children(train.pid());
  EXPECT_EQ(workers.size(), 2u);
  train.Signal(GetParam());
  const CommandResult result = train.Wait(30);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("ending the worker processes"));
  for (const pid_t pid : workers) EXPECT_FALSE(Exists(pid));
  EXPECT_TRUE(fs::is_empty(folder / "tmp"));
  EXPECT_FALSE(fs::exists(folder / "out/summary.json"));
  EXPECT_FALSE(Steps(folder / "out").empty());
}

INSTANTIATE_TEST_SUITE_P(Train, StopSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(Train_Checkpoint, None_NothingIsSavedAndTheRestIsTheSame) {
  const TestFolder folder;
  const std::string with = WriteSmallRun(folder);
  ASSERT_EQ(Command::Run({"weft", "train", with, "--out", folder / "with"}, kSeconds).code, 0);
  const std::string file = WriteSmallRun(folder, {{"checkpoint", "none"}});
  const CommandResult result = Command::Run({"weft", "train", file, "--out", folder / "out"}, kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("checkpoint")));
  const CommandResult loop =
      Command::Run({"weft", "train", file, "--out", folder / "loop", "--reference"}, kSeconds);
  ASSERT_EQ(loop.code, 0) << loop.err;
  const std::vector<Json> steps = Steps(folder / "with");
  for (const char* out : {"out", "loop"}) {
    for (const auto& entry : fs::directory_iterator(folder / out))
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("checkpoint")));
    ASSERT_EQ(Steps(folder / out).size(), steps.size());
    EXPECT_NEAR(Steps(folder / out).back()["loss"].get<double>(), steps.back()["loss"].get<double>(), 1e-6);
  }
}

TEST(Train_Checkpoint, NoneAndStopped_EndsAtOnceWithItsTrace) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder, {{"train", kLong}, {"checkpoint", "none"}});
  Command train({"weft", "train", file, "--out", folder / "out", "--processes", "2"});
  ASSERT_TRUE(WaitForStep(folder / "out"));
  train.Signal(SIGINT);
  const CommandResult result = train.Wait(30);
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("stopped by SIGINT after"), Not(HasSubstr("checkpoint"))));
  EXPECT_THAT(ReadWholeFile((folder / "out") + "/trace.json"), HasSubstr("\"cat\":\"idle\""));
}

TEST(Train_StopSignal, WorkersThatDoNotListen_KilledAfterGrace) {
  const TestFolder folder;
  Command train(LongRun(folder, "out"));
  ASSERT_TRUE(WaitForStep(folder / "out"));
  const std::vector<pid_t> workers = Children(train.pid());
  ASSERT_EQ(workers.size(), 2u);
  for (const pid_t pid : workers) kill(pid, SIGSTOP);
  train.Signal(SIGINT);
  EXPECT_EQ(train.Wait(30).code, 130);
  for (const pid_t pid : workers) EXPECT_FALSE(Exists(pid));
}

// The kernel would end some process without a word once the memory is touched.
TEST(Train_Model, LargerThanTheMachine_RefusedBeforeItIsAllocated) {
  const TestFolder folder;
  const std::string file =
      WriteSmallRun(folder, {{"model", "{gpt: {layers: 4, width: 65536, heads: 64, context: 32}}"}});
  for (const char* processes : {"1", "2"}) {
    const CommandResult result =
        Command::Run({"weft", "train", file, "--out", folder / "out", "--processes", processes}, 120);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("weights, gradients and optimizer of this process's "),
                                  HasSubstr(" take at least "), HasSubstr(" GiB")));
  }
}

TEST(Train_Worker, KilledInARunWithoutRestarts_RunFailsAndNamesTheSignal) {
  const TestFolder folder;
  Command train(LongRun(folder, "out", /*restarts=*/"0"));
  ASSERT_TRUE(WaitForStep(folder / "out"));
  const std::vector<pid_t> workers = Children(train.pid());
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[1], SIGKILL);
  const CommandResult result = train.Wait(60);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the run failed after"), HasSubstr("killed by SIGKILL"),
                                HasSubstr(std::to_string(workers[1]))));
  EXPECT_FALSE(Exists(workers[0]));
  EXPECT_TRUE(fs::is_empty(folder / "tmp"));
}

TEST(Train_Itself, Killed_ScratchFolderSweptByTheNext) {
  const TestFolder folder;
  const auto scratch = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder / "tmp")) names.push_back(entry.path().filename());
    return names;
  };
  {
    Command train(LongRun(folder, "out"));
    ASSERT_TRUE(WaitForStep(folder / "out"));
  }  // SIGKILL
  ASSERT_EQ(scratch().size(), 1u);
  fs::create_directory(folder / "tmp/weft-others");  // not ours
  fs::create_directory(folder / "tmp/weft-123456");
  Command living(LongRun(folder, "second"));
  ASSERT_TRUE(WaitForStep(folder / "second"));
  EXPECT_EQ(scratch().size(), 3u) << "the dead one's is gone";
  Command third(LongRun(folder, "third"));
  ASSERT_TRUE(WaitForStep(folder / "third"));
  EXPECT_EQ(scratch().size(), 4u) << "the living one's stays";
}

TEST(Train_Itself, Killed_WorkersEndToo) {
  const TestFolder folder;
  std::vector<pid_t> workers;
  {
    Command train(LongRun(folder, "out"));
    ASSERT_TRUE(WaitForStep(folder / "out"));
    workers = Children(train.pid());
    EXPECT_EQ(workers.size(), 2u);
  }  // SIGKILL
  for (const pid_t pid : workers) {
    // The process that adopted it has to reap it; a zombie holds nothing.
    for (int i = 0; i < 200 && fs::exists("/proc/" + std::to_string(pid) + "/exe"); ++i) {
      std::error_code error;
      if (fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error).empty()) break;
      usleep(50'000);
    }
    std::error_code error;
    EXPECT_TRUE(fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error).empty());
  }
}

}  // namespace
}  // namespace weft::train_test
