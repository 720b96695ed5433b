// The run API's commands against a real coordinator and real workers, as an operator would start them by
// hand.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::runs_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const char* const kLong =
    "{steps: 1000000, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}";

class Runs : public ::testing::Test {
 protected:
  Runs() : address_("unix:" + (folder_ / "coordinator.sock")) {
    coordinator_ = std::make_unique<Command>(std::vector<std::string>{
        "weft-coordinator", "--listen", address_, "--output-root", folder_ / "runs"});
    EXPECT_TRUE(coordinator_->WaitFor("listening on", 60));
  }

  void StartWorkers(int count) {
    for (int i = 0; i < count; ++i) {
      workers_.push_back(
          std::make_unique<Command>(std::vector<std::string>{"weft-worker", "--coordinator", address_}));
    }
  }

  CommandResult Weft(std::vector<std::string> arguments, int seconds = 120) const {
    arguments.insert(arguments.begin(), "weft");
    arguments.insert(arguments.end(), {"--coordinator", address_});
    return Command::Run(arguments, seconds);
  }

  // Waits until the run has made so many steps.
  bool AwaitSteps(int run, int steps) const {
    for (int i = 0; i < 1200; ++i) {
      const CommandResult described = Weft({"describe", absl::StrCat(run), "-o", "json"});
      if (described.code == 0 && Json::parse(described.out)["steps_done"] >= steps) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  const TestFolder folder_;
  const std::string address_;
  std::unique_ptr<Command> coordinator_;
  std::vector<std::unique_ptr<Command>> workers_;
};

// Returns the objects of lines of JSON.
std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    lines.push_back(Json::parse(line));
  return lines;
}

// Returns how many events of each category a trace has.
std::map<std::string, int> EventsOf(const std::string& path) {
  std::map<std::string, int> events;
  const Json trace = Json::parse(ReadWholeFile(path));
  for (const Json& event : trace["traceEvents"]) ++events[event.value("cat", "")];
  return events;
}

TEST_F(Runs, LogsOfARun_HaveWorkersAndCoordinatorInOneOrderAndInItsFolder) {
  StartWorkers(2);
  const std::string file = WriteSmallRun(folder_);
  ASSERT_EQ(Weft({"submit", file, "--processes", "2", "--detach"}).code, 0);
  const CommandResult followed = Weft({"logs", "1", "-f", "-o", "json"});
  ASSERT_EQ(followed.code, 0) << followed.err;
  const std::vector<Json> lines = JsonLines(followed.out);
  ASSERT_GE(lines.size(), 4u) << followed.out;
  int of_worker = 0, ended = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& line = lines[i];
    EXPECT_EQ(line["number"], i + 1) << followed.out;
    EXPECT_EQ(line["run"], 1);
    const std::string text = line["text"];
    if (line.contains("process")) {
      ++of_worker;
      EXPECT_THAT(line["writer"].get<std::string>(),
                  HasSubstr(absl::StrCat("process ", line["process"].dump())));
      EXPECT_FALSE(line["ranks"].empty()) << text;
    } else {
      EXPECT_EQ(line["writer"], "coordinator");
      ended += text.find("has finished") != std::string::npos;
    }
  }
  EXPECT_GE(of_worker, 2) << followed.out;
  EXPECT_EQ(ended, 1) << "following ends behind the run's end\n" << followed.out;

  // The log of one rank has the coordinator's lines, and those of that rank's process.
  const CommandResult of_rank = Weft({"logs", "1", "--rank", "0", "-o", "json"});
  ASSERT_EQ(of_rank.code, 0) << of_rank.err;
  for (const Json& line : JsonLines(of_rank.out)) {
    const std::vector<int> ranks = line.value("ranks", std::vector<int>{0});
    EXPECT_THAT(ranks, ::testing::Contains(0)) << line;
  }
  EXPECT_LT(JsonLines(of_rank.out).size(), lines.size());

  // In the folder, once its writer is done, is what the coordinator has told up to the run's end.
  const Json run = Json::parse(Weft({"describe", "1", "-o", "json"}).out);
  const std::string output = run["out"];
  ASSERT_EQ(Weft({"wait", "1"}).code, 0);
  const CommandResult kept = Command::Run({"weft", "logs", output, "-o", "json"}, 60);
  ASSERT_EQ(kept.code, 0) << kept.err;
  const std::vector<Json> in_folder = JsonLines(kept.out);
  ASSERT_GE(in_folder.size(), 4u);
  ASSERT_LE(in_folder.size(), lines.size());
  for (size_t i = 0; i < in_folder.size(); ++i) EXPECT_EQ(in_folder[i], lines[i]);
  const CommandResult read = Command::Run({"weft", "logs", output}, 60);
  EXPECT_THAT(read.out, HasSubstr("Z info coordinator: run 1 (")) << read.err;
}

TEST_F(Runs, OfAPool_AreServedByItsWorkerByPriority) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--name", "any"}, {"--name", "big", "--pool", "large"}}) {
    std::vector<std::string> words = {"weft-worker", "--coordinator", address_};
    words.insert(words.end(), flags.begin(), flags.end());
    workers_.push_back(std::make_unique<Command>(words));
    ASSERT_TRUE(coordinator_->WaitFor(flags[1] + ", pid", 60));
  }
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  const auto submit = [&](const std::vector<std::string>& terms) {
    std::vector<std::string> words = {"submit", file, "--processes", "1", "--detach"};
    words.insert(words.end(), terms.begin(), terms.end());
    const CommandResult done = Weft(words);
    EXPECT_EQ(done.code, 0) << done.err;
  };
  const auto describe = [&](int run) {
    return Json::parse(Weft({"describe", absl::StrCat(run), "-o", "json"}).out);
  };
  const auto becomes = [&](int run, const std::string& state) {
    for (int i = 0; i < 600 && describe(run)["state"] != state; ++i) usleep(100'000);
    return describe(run)["state"] == state;
  };
  submit({"--pool", "large"});
  ASSERT_TRUE(becomes(1, "running"));
  submit({"--pool", "large"});
  submit({"--pool", "large", "--priority", "5"});
  submit({"--pool", "small"});
  EXPECT_THAT(describe(2)["reason"].get<std::string>(),
              HasSubstr("behind run 3; needs 1 worker process of pool large"));
  EXPECT_THAT(describe(4)["reason"].get<std::string>(), HasSubstr("of pool small, 0 are free (0 connected)"));
  EXPECT_EQ(describe(3)["priority"], 5);
  EXPECT_THAT(Weft({"ls"}).out, AllOf(HasSubstr("pool"), HasSubstr("large"), HasSubstr("priority")));
  const Json workers = Json::parse(Weft({"workers", "-o", "json"}).out);
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0]["pool"], "");
  EXPECT_EQ(workers[0]["state"], "free") << "it serves no pool";
  EXPECT_EQ(workers[1]["pool"], "large");
  EXPECT_THAT(Weft({"workers"}).out, HasSubstr("pool"));
  ASSERT_EQ(Weft({"cancel", "1"}).code, 0);
  EXPECT_TRUE(becomes(3, "running"));
  EXPECT_EQ(describe(2)["state"], "waiting");
  EXPECT_NE(Weft({"submit", file, "--pool", "Not A Name", "--detach"}).code, 0);
  EXPECT_EQ(Weft({"submit", file, "--priority", "1001", "--detach"}).code, 2);
}

TEST_F(Runs, Doctor_ComparesReleasesLibrariesAndClocks) {
  StartWorkers(2);
  const auto connected = [this] { return Json::parse(Weft({"workers", "-o", "json"}).out).size(); };
  for (int i = 0; i < 1200 && connected() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(connected(), 2u);
  const CommandResult result = Weft({"doctor", "-o", "json"});
  std::map<std::string, Json> findings;
  for (const Json& finding : Json::parse(result.out)) findings[finding["name"]] = finding;
  for (const char* name : {"coordinator", "coordinator's clock", "workers", "releases", "workers' libraries",
                           "weft-worker", "data ports", "certificates"})
    EXPECT_EQ(findings[name]["verdict"], "ok") << name << ": " << findings[name];
  EXPECT_EQ(findings["workers"]["found"], "2 connected, 2 free");
  const std::string libraries = findings["workers' libraries"]["found"];
  EXPECT_THAT(libraries, AllOf(HasSubstr("LibTorch "), HasSubstr("UCX "), HasSubstr("gRPC ")));
  for (const char* name : {"clock", "locked memory", "/dev/shm", "open files", "coordinator's port"})
    EXPECT_EQ(findings.count(name), 1u) << name;
  EXPECT_THAT(Weft({"doctor"}).out, AllOf(HasSubstr("needed"), HasSubstr("what to do")));
}

TEST_F(Runs, LogsOfNoRun_SayWhatToGive) {
  EXPECT_EQ(Weft({"logs", "7"}).code, 1);
  const CommandResult neither = Weft({"logs", "seven"});
  EXPECT_EQ(neither.code, 2);
  EXPECT_THAT(neither.err, HasSubstr("neither the number of a run"));
  EXPECT_EQ(Weft({"logs", folder_ / "", "-f"}).code, 2);
  EXPECT_EQ(Weft({"logs", folder_ / ""}).code, 78);
}

// Why a rank is idle is asked while it is, and from another machine than the coordinator's.
TEST_F(Runs, ThatGoOn_TellTheirTraceAndWhereTimeGoes) {
  StartWorkers(2);
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  ASSERT_EQ(Weft({"submit", file, "--processes", "2", "--detach"}).code, 0);
  ASSERT_TRUE(AwaitSteps(1, 20));
  const CommandResult trace = Weft(
      {"trace", "1", "-o", "json", "--perfetto", folder_ / "now.json", "--otlp", folder_ / "spans.json"});
  ASSERT_EQ(trace.code, 0) << trace.err;
  const Json told = Json::parse(trace.out);
  EXPECT_EQ(told["measured"], true);
  EXPECT_GE(told["last_step"], 19);
  EXPECT_EQ(told["ranks"], 4);
  EXPECT_GT(told["transfers"], 0);
  EXPECT_GT(told["otlp"]["links"], 0) << "the run's schedule came with it";
  std::map<std::string, int> events = EventsOf(folder_ / "now.json");
  EXPECT_GT(events["forward"], 0);
  EXPECT_GT(events["planned"], 0);
  EXPECT_GT(events["idle"], 0) << "the workers were asked";

  const CommandResult explained = Weft({"explain", "1", "-o", "json"});
  ASSERT_EQ(explained.code, 0) << explained.err;
  const Json json = Json::parse(explained.out);
  double sum = 0;
  for (const Json& difference : json["differences"]) sum += difference["seconds"].get<double>();
  EXPECT_NEAR(sum, json["measured"].get<double>() - json["planned"].get<double>(), 1e-9);
  EXPECT_THAT(Weft({"explain", "1"}).out, HasSubstr("measured less planned"));

  const std::string output = Json::parse(Weft({"describe", "1", "-o", "json"}).out)["out"];
  for (const char* const command : {"explain", "trace"}) {
    const CommandResult early = Weft({command, output});
    EXPECT_EQ(early.code, 75);
    EXPECT_THAT(early.err, HasSubstr("has no trace.json yet, since its run goes on; give the number"));
  }

  // No worker is left for a second one.
  ASSERT_EQ(Weft({"submit", file, "--processes", "2", "--detach"}).code, 0);
  const CommandResult waits = Weft({"explain", "2"});
  EXPECT_EQ(waits.code, 0) << waits.err;
  EXPECT_THAT(waits.out, HasSubstr("run 2 (small) is waiting: needs 2 worker processes, 0 are free"));
  EXPECT_EQ(Json::parse(Weft({"explain", "2", "-o", "json"}).out)["state"], "waiting");
  for (const std::vector<std::string>& comparison :
       {std::vector<std::string>{"--step", "1"}, {"--own-times"}, {"--profile", "p.json"}}) {
    for (const std::vector<std::string>& now : {std::vector<std::string>{"--now"}, {"--rank", "0"}}) {
      std::vector<std::string> both = {"explain", "1"};
      both.insert(both.end(), comparison.begin(), comparison.end());
      both.insert(both.end(), now.begin(), now.end());
      EXPECT_EQ(Weft(both).code, 2) << comparison[0] << " and " << now[0] << " are two questions";
    }
  }
  const CommandResult none = Weft({"trace", "2"});
  EXPECT_EQ(none.code, 75);
  EXPECT_THAT(none.err, HasSubstr("run 2 has no trace: it has ended no step yet"));
  EXPECT_EQ(Weft({"cancel", "2"}).code, 0);
  EXPECT_EQ(Weft({"trace", "2"}).code, 1) << "there will be none";
  EXPECT_EQ(Weft({"explain", "3"}).code, 1);
  EXPECT_EQ(Weft({"trace", "3"}).code, 1);
}

TEST_F(Runs, ThatHaveFinished_TellTheirTraceUntilItsFolderIsGone) {
  StartWorkers(2);
  ASSERT_EQ(Weft({"submit", WriteSmallRun(folder_), "--processes", "2", "--out", folder_ / "out"}).code, 0);
  const CommandResult told = Weft({"trace", "1", "--perfetto", folder_ / "told.json"});
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(ReadWholeFile(folder_ / "told.json"), ReadWholeFile(folder_ / "out/trace.json"));
  EXPECT_EQ(Weft({"explain", "1"}).code, 0);
  fs::remove_all(folder_ / "out");
  const CommandResult gone = Weft({"trace", "1"});
  EXPECT_EQ(gone.code, 1);
  EXPECT_THAT(gone.err, AllOf(HasSubstr("run 1 has no trace"), HasSubstr("which are not there now")));
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--own-times"}}) {
    std::vector<std::string> command = {"explain", "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    const CommandResult explained = Weft(command);
    EXPECT_EQ(explained.code, 1) << explained.out;
    EXPECT_THAT(explained.err, HasSubstr("run 1 has no trace"));
  }
}

TEST_F(Runs, SubmittedAndWaitedFor_FinishesWithCheckpoint) {
  StartWorkers(2);
  const std::string file = WriteSmallRun(folder_);
  const CommandResult submit =
      Weft({"submit", file, "--processes", "2", "--out", folder_ / "out", "--detach"});
  ASSERT_EQ(submit.code, 0) << submit.err;
  EXPECT_EQ(submit.out, "1\n");
  const CommandResult wait = Weft({"wait", "1"});
  EXPECT_EQ(wait.code, 0) << wait.err;
  EXPECT_THAT(wait.out,
              AllOf(HasSubstr("state      finished"), HasSubstr("steps      3/3"), HasSubstr("dependency")));
  EXPECT_FALSE(ReadWholeFile(folder_ / "out/checkpoint/stage03.safetensors").empty());
  const Json described = Json::parse(Weft({"describe", "1", "-o", "json"}).out);
  EXPECT_EQ(described["state"], "finished");
  EXPECT_EQ(described["ranks"], 4);
  EXPECT_EQ(described["rank_reports"].size(), 4u);
  EXPECT_GT(described["loss"], 0);
  EXPECT_GT(described["ended"], described["started"]);
  // Attached: the same workers serve the next run, and the exit code is the run's.
  EXPECT_THAT(Weft({"workers"}).out, HasSubstr("free"));
  EXPECT_EQ(Json::parse(Weft({"workers", "-o", "json"}).out).size(), 2u);
  EXPECT_THAT(Weft({"top"}).out, AllOf(HasSubstr("2 workers, 0 runs"), HasSubstr("free")));
  EXPECT_EQ(Json::parse(Weft({"top", "-o", "json"}).out).size(), 2u);
  const CommandResult attached = Weft({"submit", file, "--processes", "1"});
  EXPECT_EQ(attached.code, 0) << attached.err;
  EXPECT_THAT(attached.err, HasSubstr("submitted as run 2"));
  EXPECT_THAT(Weft({"ls"}).out, AllOf(HasSubstr("run  name   state"), HasSubstr("  1  small  finished")));
  EXPECT_EQ(Json::parse(Weft({"ls", "-o", "json"}).out).size(), 2u);
  // The log has a line for each state, and none twice.
  coordinator_->Signal(SIGTERM);
  const std::string log = coordinator_->Wait(60).err;
  for (const char* state : {"is preparing", "is running", "is finishing", "has finished"}) {
    const std::string line = absl::StrCat("run 1 (small) ", state);
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, line)).size(), 2u) << line << "\n" << log;
  }
}

// The run cannot end before the folder is gone: its worker waits until then.
TEST_F(Runs, WhoseFolderIsRemoved_FinishWithASentenceAndExitOne) {
  StartWorkers(1);
  const std::string file = WriteSmallRun(
      folder_,
      {{"model", "{gpt: {layers: 2, width: 16, heads: 2, context: 8}}"},
       {"train", "{steps: 400, batch: 4, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}"}});
  const std::string out = folder_ / "out";
  Command submit({"weft", "submit", file, "--processes", "1", "--out", out, "--coordinator", address_});
  ASSERT_TRUE(AwaitSteps(1, 1));
  workers_[0]->Signal(SIGSTOP);
  fs::remove_all(out);
  workers_[0]->Signal(SIGCONT);
  const CommandResult result = submit.Wait(120);
  EXPECT_EQ(result.code, 1);
  const std::string sentence = "the folder " + out + " was removed while the run went on";
  EXPECT_THAT(result.err, HasSubstr("run 1: the run finished, but " + sentence));
  const CommandResult wait = Weft({"wait", "1", "-o", "json"});
  EXPECT_EQ(wait.code, 1);
  const Json run = Json::parse(wait.out);
  EXPECT_EQ(run["state"], "finished");
  EXPECT_THAT(run["output_failure"].get<std::string>(), HasSubstr(sentence));
}

// No terminal is there to show it.
TEST_F(Runs, WatchedWhileItWaits_SaysForWhatAndEachChange) {
  Command watching({"weft", "submit", WriteSmallRun(folder_), "--coordinator", address_});
  EXPECT_TRUE(watching.WaitFor("waiting: needs 4 worker processes, 0 are free (0 connected)", 60));
  StartWorkers(1);
  EXPECT_TRUE(watching.WaitFor("waiting: needs 4 worker processes, 1 is free (1 connected)", 60));
  watching.Signal(SIGINT);
  EXPECT_EQ(watching.Wait(60).code, 130);
}

TEST_F(Runs, SubmittedWithoutOut_FolderOfItsOwnWithAllThatATrainingLeaves) {
  StartWorkers(1);
  const std::string file =
      WriteSmallRun(folder_, {{"validate", "{data: {text: {path: text.txt}}, samples: 4}"}});
  const CommandResult submit = Weft({"submit", file, "--processes", "1", "--detach"});
  ASSERT_EQ(submit.code, 0) << submit.err;
  const std::string out = folder_ / "runs/small-1";
  EXPECT_EQ(submit.out, "1\n");
  EXPECT_THAT(submit.err, HasSubstr("submitted as run 1; its results go to " + out));
  ASSERT_EQ(Weft({"wait", "1"}).code, 0);
  const Json summary = Json::parse(ReadWholeFile(out + "/summary.json"));
  EXPECT_EQ(summary["steps"], 3);
  EXPECT_EQ(summary["idle_seconds"].size(), 4u);
  EXPECT_THAT(ReadWholeFile(out + "/steps.jsonl"), HasSubstr("\"step\":2"));
  EXPECT_THAT(ReadWholeFile(out + "/steps.jsonl"), HasSubstr("{\"step\":3,\"validation_loss\":"));
  EXPECT_EQ(summary["validation_step"], 3);
  EXPECT_THAT(ReadWholeFile(out + "/trace.json"), HasSubstr("traceEvents"));
  for (const char* name : {"/timeline.svg", "/actions.csv", "/checkpoint/model.safetensors.index.json"}) {
    EXPECT_TRUE(fs::exists(out + name)) << name;
  }
  EXPECT_EQ(Json::parse(ReadWholeFile(out + "/run.json"))["state"], "finished");
  const CommandResult described = Weft({"describe", "1"});
  EXPECT_THAT(described.out, AllOf(HasSubstr("out        " + out), HasSubstr("file       " + file),
                                   HasSubstr("submitted  2"), HasSubstr("ranks 0 to 3"),
                                   HasSubstr("validation loss "), HasSubstr("after step 3")));
  // Nobody else's results are in danger: neither by name nor by another run's end.
  const CommandResult into = Weft({"submit", file, "--processes", "1", "--out", out});
  EXPECT_EQ(into.code, 78);
  EXPECT_THAT(into.err, HasSubstr(out + " holds the run small, finished"));
  EXPECT_EQ(Weft({"submit", file, "--processes", "1", "--out", out, "--overwrite", "--until", "2"}).code, 0);
  EXPECT_EQ(Json::parse(ReadWholeFile(out + "/summary.json"))["steps"], 2);
  // One that is refused leaves the folder as it was, and one that goes on keeps what it begins with.
  const std::string record = ReadWholeFile(out + "/run.json");
  EXPECT_NE(Weft({"submit", file, "--processes", "99", "--out", out, "--resume", out}).code, 0);
  for (int i = 0; i < 600 && fs::exists(out + "/.weft.lock"); ++i) usleep(100'000);
  EXPECT_EQ(ReadWholeFile(out + "/run.json"), record);
  EXPECT_TRUE(fs::exists(out + "/checkpoint") && !fs::exists(out + "/checkpoint-2"));
  EXPECT_EQ(Weft({"submit", file, "--processes", "1", "--out", out, "--resume", out + "/checkpoint"}).code,
            0);
  EXPECT_THAT(ReadWholeFile(out + "/steps.jsonl"), AllOf(HasSubstr("\"step\":0"), HasSubstr("\"step\":2")));
  EXPECT_TRUE(fs::exists(out + "/checkpoint") && fs::exists(out + "/checkpoint-2"));
}

TEST_F(Runs, Failed_ReasonAndStepsAreInItsFolder) {
  StartWorkers(1);
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  ASSERT_EQ(Weft({"submit", file, "--processes", "1", "--detach"}).code, 0);
  const std::string out = folder_ / "runs/small-1";
  for (int i = 0; i < 600 && ReadWholeFile(out + "/steps.jsonl").empty(); ++i) usleep(100'000);
  // The folder is the run's as long as it lives.
  EXPECT_EQ(Weft({"submit", file, "--processes", "1", "--out", out, "--overwrite"}).code, 75);
  ASSERT_EQ(Weft({"cancel", "1", "--reason", "wrong rate"}).code, 0);
  EXPECT_EQ(Weft({"wait", "1"}).code, 1);
  const Json run = Json::parse(ReadWholeFile(out + "/run.json"));
  EXPECT_EQ(run["state"], "stopped");
  EXPECT_THAT(run["reason"].get<std::string>(), HasSubstr("wrong rate"));
  EXPECT_FALSE(ReadWholeFile(out + "/steps.jsonl").empty());
  // The trace of its last steps is there too.
  for (const std::string& place : {std::string("1"), out}) {
    EXPECT_THAT(Weft({"explain", place}).out, HasSubstr("measured less planned")) << place;
    EXPECT_EQ(Json::parse(Weft({"trace", place, "-o", "json"}).out)["ranks"], 4) << place;
  }
  EXPECT_TRUE(fs::exists(out + "/timeline.svg") && fs::exists(out + "/actions.csv"));
  EXPECT_GT(EventsOf(out + "/trace.json")["idle"], 0) << "the worker told before it forgot the run";
}

TEST_F(Runs, FailedWithALostWorker_TraceHasWhatTheOthersTold) {
  StartWorkers(2);
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}, {"restarts", "0"}});
  ASSERT_EQ(Weft({"submit", file, "--processes", "2", "--detach"}).code, 0);
  ASSERT_TRUE(AwaitSteps(1, 5));
  workers_[0]->Signal(SIGKILL);
  EXPECT_EQ(Weft({"wait", "1"}).code, 1);
  const std::string out = folder_ / "runs/small-1";
  EXPECT_EQ(Json::parse(ReadWholeFile(out + "/run.json"))["state"], "failed");
  std::map<std::string, int> events = EventsOf(out + "/trace.json");
  EXPECT_GT(events["idle"], 0);
  EXPECT_GT(events["transfer"], 0);
}

// A namespace gives a process another name of its machine.
TEST_F(Runs, ProfiledOnAFleet_NetworkHasItsHostsSpeedsAndLinks) {
  const auto on_host = [](const std::string& host, const std::string& command) {
    return std::vector<std::string>{"/usr/bin/unshare", "--uts", "/bin/sh", "-c",
                                    absl::StrCat("hostname ", host, " && exec ", command)};
  };
  if (Command::Run(on_host("a", "true")).code != 0) GTEST_SKIP() << "needs the right to make namespaces";
  const std::string worker = absl::StrCat(std::getenv("WEFT_BIN"), "/weft-worker --coordinator ", address_);
  for (const char* host : {"a", "b", "a"})
    workers_.push_back(std::make_unique<Command>(on_host(host, worker)));
  const std::string file = WriteSmallRun(folder_), network = folder_ / "network.yaml";
  const CommandResult result = Weft(
      {"profile", file, "--fleet", "--ranks", "3", "--network", network, "-o", folder_ / "profile.json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string text = ReadWholeFile(network);
  EXPECT_THAT(text, ::testing::AnyOf(
                        AllOf(HasSubstr("a: ranks 0 to 1\n#   b: rank 2\n"), HasSubstr("nodes: [2, 1]\n")),
                        AllOf(HasSubstr("b: rank 0\n#   a: ranks 1 to 2\n"), HasSubstr("nodes: [1, 2]\n"))));
  EXPECT_THAT(text, AllOf(HasSubstr("between: {"), HasSubstr("#   0 and 1: "), HasSubstr("#   0 and 2: "),
                          HasSubstr("#   1 and 2: ")));
  const Json profile = Json::parse(ReadWholeFile(folder_ / "profile.json"));
  EXPECT_GT(profile["layers"][0]["forward"], 0);
  EXPECT_GT(profile["layers"][0]["backward_weight"], 0);
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "runs"))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("checkpoint")));
  EXPECT_EQ(
      Command::Run({"weft", "compare", file, "--profile", folder_ / "profile.json", "--network", network})
          .code,
      0);
  EXPECT_EQ(
      Command::Run({"weft", "profile", file, "--fleet", "--coordinator", "unix:" + (folder_ / "none")}).code,
      69);
  // It is a run like any other: it waits for workers, and Ctrl-C cancels it.
  Command waits({"weft", "profile", file, "--fleet", "--coordinator", address_, "--ranks", "9", "--network",
                 folder_ / "none.yaml"});
  ASSERT_TRUE(waits.WaitFor("waits: needs 9 worker processes, 3 are free", 60));
  waits.Signal(SIGINT);
  EXPECT_EQ(waits.Wait(30).code, 130);
  EXPECT_THAT(Weft({"ls"}).out, ::testing::Not(HasSubstr("waiting")));
}

TEST_F(Runs, SchedulesMeasuredOnAFleet_AreComparedByWhatItsWorkersTook) {
  StartWorkers(2);
  const std::string file = WriteSmallRun(folder_);
  const CommandResult result = Weft({"compare", file, "--measure", "--fleet", "--ranks", "2", "--schedules",
                                     "1f1b,gpipe,ddp", "--repeats", "2", "-o", "json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json rows = Json::parse(result.out)["schedules"];
  ASSERT_EQ(rows.size(), 3u) << rows;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(rows[i]["processes"], 2) << rows[i];
    EXPECT_EQ(rows[i]["step_seconds_of_repeats"].size(), 2u) << rows[i];
    EXPECT_GT(rows[i]["step_seconds"], 0) << rows[i];
    EXPECT_GT(rows[i]["bytes_sent"].size(), 0u) << rows[i];
  }
  EXPECT_FALSE(rows[2]["ran"]) << "it takes a rank for each micro-batch";
  EXPECT_EQ(Json::parse(Weft({"ls", "-o", "json"}).out).size(), 4u) << "each was a run of its own";
}

// A time namespace gives a process another monotonic clock, as another machine has.
TEST_F(Runs, OnWorkersWhoseClocksDiffer_TimesAreThoseOfOneClock) {
  const std::vector<std::string> elsewhere = {"/usr/bin/unshare", "--time", "--monotonic", "1000000"};
  std::vector<std::string> words = elsewhere;
  words.emplace_back("/bin/true");
  if (Command::Run(words).code != 0) GTEST_SKIP() << "needs the right to make time namespaces";
  StartWorkers(1);
  words = elsewhere;
  words.insert(words.end(),
               {absl::StrCat(std::getenv("WEFT_BIN"), "/weft-worker"), "--coordinator", address_});
  workers_.push_back(std::make_unique<Command>(words));
  ASSERT_EQ(Weft({"submit", WriteSmallRun(folder_), "--processes", "2", "--out", folder_ / "out"}).code, 0);
  for (const Json& step : JsonLines(ReadWholeFile(folder_ / "out/steps.jsonl"))) {
    EXPECT_GT(step["seconds"], 0) << step;
    EXPECT_LT(step["end_seconds"], 60) << step;
  }
  const Json trace = Json::parse(ReadWholeFile(folder_ / "out/trace.json"));
  for (const Json& event : trace["traceEvents"]) {
    if (!event.contains("ts")) continue;
    EXPECT_LT(event["ts"], 60e6) << event;
    EXPECT_GE(event["ts"], 0) << event;
  }
}

TEST_F(Runs, CancelledWithSave_LeavesACheckpointToGoOnFrom) {
  StartWorkers(1);
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  ASSERT_EQ(Weft({"submit", file, "--processes", "1", "--detach"}).code, 0);
  const std::string out = folder_ / "runs/small-1";
  for (int i = 0; i < 600 && ReadWholeFile(out + "/steps.jsonl").empty(); ++i) usleep(100'000);
  ASSERT_EQ(Weft({"cancel", "1", "--save"}).code, 0);
  EXPECT_EQ(Weft({"wait", "1"}).code, 1);
  EXPECT_EQ(Json::parse(ReadWholeFile(out + "/run.json"))["state"], "stopped");
  std::string saved;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("checkpoint-") && name != "checkpoint-0") saved = entry.path();
  }
  ASSERT_FALSE(saved.empty());
  EXPECT_TRUE(fs::exists(saved + "/model.safetensors.index.json"));
}

TEST_F(Runs, Cancelled_WaitReturnsOneWithTheReason) {
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  ASSERT_EQ(Weft({"submit", file, "--detach"}).code, 0);
  const CommandResult early = Weft({"wait", "1", "--timeout", "0.5"});
  EXPECT_EQ(early.code, 124);
  EXPECT_THAT(early.err, AllOf(HasSubstr("has not ended after 0.5 s"), HasSubstr("waiting")));
  // It says what it waits for.
  EXPECT_THAT(Weft({"ls"}).out, HasSubstr("run 1 waits: needs 4 worker processes, 0 are free (0 connected)"));
  const CommandResult cancel = Weft({"cancel", "1", "--reason", "wrong learning rate"});
  EXPECT_EQ(cancel.code, 0) << cancel.err;
  const CommandResult wait = Weft({"wait", "1"});
  EXPECT_EQ(wait.code, 1);
  EXPECT_THAT(wait.out, AllOf(HasSubstr("cancelled"), HasSubstr("wrong learning rate")));
}

TEST_F(Runs, InterruptedWhileWatching_TheRunGoesOn) {
  Command watch({"weft", "submit", WriteSmallRun(folder_, {{"train", kLong}}), "--coordinator", address_});
  ASSERT_TRUE(watch.WaitFor("submitted as run 1", 60));
  watch.Signal(SIGINT);
  EXPECT_EQ(watch.Wait(30).code, 130);
  EXPECT_EQ(Json::parse(Weft({"describe", "1", "-o", "json"}).out)["state"], "waiting");
}

TEST_F(Runs, MistakesAndUnknownRuns_ExitCodesOfTheContract) {
  const CommandResult unknown = Weft({"describe", "77"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("77"));
  const CommandResult no_number = Weft({"describe", "first"});
  EXPECT_EQ(no_number.code, 2);
  EXPECT_THAT(no_number.err, HasSubstr("\"first\" is not the number of a run; weft ls shows the numbers"));
  EXPECT_EQ(Weft({"submit", WriteSmallRun(folder_, {{"stages", "99"}})}).code, 78);
  const CommandResult many = Weft({"submit", WriteSmallRun(folder_), "--processes", "5"});
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.err, HasSubstr("--processes 5 is more than the 4 ranks"));
  coordinator_.reset();
  const CommandResult gone = Weft({"ls"});
  EXPECT_EQ(gone.code, 69);
  EXPECT_THAT(gone.err, HasSubstr("unreachable"));
  const CommandResult address = Command::Run({"weft", "ls", "--coordinator", "nowhere"});
  EXPECT_EQ(address.code, 2);
  EXPECT_THAT(address.err, HasSubstr("HOST:PORT"));
}

}  // namespace
}  // namespace weft::runs_test
