// Real trainings in which the state of each stage moves from rank to rank: the reference's bits on any number
// of processes, one holder at a time by the processes' own clocks, and point to point messages only.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "schedules/families/families.h"
#include "schedules/graph/graph.h"
#include "schedules/simulator/simulate.h"
#include "schedules/sync/state_route.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"
#include "tests/process/standing_workers.h"
#include "tests/unit/without_terms.h"

namespace weft::migrating_test {
namespace {

using Json = nlohmann::json;

constexpr char kAdamW[] = "{adamw: {lr: 3.0e-3, weight_decay: 0.1}}";
constexpr char kSgd[] = "{sgd: {lr: 0.05, momentum: 0.9, weight_decay: 0.01}}";

struct Case {
  std::string model = "gpt", optimizer = kAdamW, rule = "cdp_v2", more;
  int n = 4, steps = 20;
};

std::string Schedule(const Case& c) {
  return absl::StrCat("{fsdp: {residency: migrating}, rule: ", c.rule, c.more, "}");
}

std::map<std::string, std::string> ReadTensors(const std::string& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file = ReadWholeFile(entry.path());
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const Json header = Json::parse(file.substr(8, length));
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      const uint64_t begin = value["data_offsets"][0], end = value["data_offsets"][1];
      tensors[name] = file.substr(8 + length + begin, end - begin);
    }
  }
  return tensors;
}

std::vector<double> ReadLosses(const std::string& folder) {
  std::vector<double> losses;
  std::ifstream file(folder + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) losses.push_back(Json::parse(line)["loss"]);
  return losses;
}

class Migrating : public OnStandingWorkers {
 protected:
  void SetUp() override { WriteIdx(folder_, 240, 8); }

  std::string RunFile(const Case& c) {
    const std::string mlp = "{mlp: {layers: 4, width: 48, inputs: 64, classes: 10, dropout: 0.1}}";
    std::map<std::string, std::string> sections = {
        {"train", absl::StrCat("{steps: ", c.steps, ", batch: 12, microbatches: ", c.n,
                               ", seed: 5, optimizer: ", c.optimizer, "}")},
        {"stages", absl::StrCat(c.n)},
        {"schedule", Schedule(c)}};
    if (c.model == "mlp") {
      sections["model"] = mlp;
      sections["data"] = "{idx: {images: images.idx, labels: labels.idx}}";
    }
    return WriteSmallRun(folder_, sections);
  }

  void Train(const std::string& file, const std::vector<std::string>& flags, const std::string& out) {
    std::vector<std::string> words = {"weft", "train", file};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--overwrite", "--out", folder_ / out});
    const CommandResult r = Command::Run(words, 120);
    ASSERT_EQ(r.code, 0) << r.err;
  }

  void ExpectReference(const Case& c, const std::vector<int>& processes) {
    const std::string file = RunFile(c);
    Train(file, {"--reference"}, "plain");
    if (HasFatalFailure()) return;
    const auto trained = ReadTensors(folder_ / "plain/checkpoint");
    const auto initial = ReadTensors(folder_ / "plain/checkpoint-0");
    ASSERT_NE(trained, initial) << "the reference did not train";
    for (const int count : processes) {
      SCOPED_TRACE(
          absl::StrCat(c.model, " ", c.optimizer, " ", Schedule(c), " N=", c.n, " on ", count, " processes"));
      const CommandResult r = Workers().Train(file, {"--processes", absl::StrCat(count)}, folder_ / "out");
      ASSERT_EQ(r.code, 0) << r.err;
      EXPECT_EQ(ReadTensors(folder_ / "out/checkpoint-0"), initial) << "initial weights differ";
      EXPECT_EQ(ReadTensors(folder_ / "out/checkpoint"), trained) << "trained weights differ";
      EXPECT_EQ(ReadLosses(folder_ / "out"), ReadLosses(folder_ / "plain"));
    }
  }

  TestFolder folder_;
};

TEST_F(Migrating, AnyModelOptimizerAndProcesses_EndsWithTheReferencesBits) {
  for (const char* model : {"gpt", "mlp"}) {
    for (const char* optimizer : {kSgd, kAdamW}) {
      for (const int n : {3, 4}) {
        const bool all = optimizer == kAdamW;
        ExpectReference({model, optimizer, "cdp_v2", "", n},
                        all ? std::vector<int>{1, 2, n} : std::vector<int>{n});
        ExpectReference({model, optimizer, "cdp_v1", "", n}, {2});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(Migrating, OneAndTwoStagesFewStepsAndEveryActivationPolicy_EndWithTheReferencesBits) {
  for (const char* rule : {"cdp_v1", "cdp_v2"}) {
    ExpectReference({"mlp", kSgd, rule, "", 1}, {1});
    ExpectReference({"mlp", kAdamW, rule, "", 2}, {1, 2});
    for (const int steps : {1, 2, 3}) ExpectReference({"gpt", kAdamW, rule, "", 4, steps}, {2});
  }
  ExpectReference({"gpt", kAdamW, "cdp_v2", ", activations: recompute"}, {2});
  ExpectReference({"gpt", kAdamW, "cdp_v2", ", activations: offload"}, {2});
}

Job JobOf(const Json& event) {
  const Json& args = event["args"];
  const std::string kind = event["cat"];
  if (kind == "update") return Job::Update(args["step"], args["stage"], 0);
  return Job::Compute(args["step"], args["stage"], args["microbatch"],
                      kind == "forward" ? JobKind::kForward : JobKind::kBackward);
}

// A rank has a stage's state from the start of a job on its route to the end of the last such job before it
// leaves. No two of these spans overlap on the clock that all processes share, and they follow the state's
// route.
TEST_F(Migrating, StateOfAStage_IsWithOneRankAtATime) {
  for (const int n : {2, 4}) {
    Case c;
    c.n = n;
    Train(RunFile(c), {"--processes", absl::StrCat(n)}, "out");
    if (HasFatalFailure()) return;
    auto schedule = MakeSchedule("fsdp", {{"residency", "migrating"}}, n, n);
    ASSERT_TRUE(ApplyRule(c.rule, "fsdp", &*schedule).ok());
    const Graph graph(WithoutTerms(*schedule), c.steps);
    std::map<int, std::vector<Json>> of_stage;
    const Json trace = Json::parse(ReadWholeFile(folder_ / "out/trace.json"));
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] == "idle" || event["cat"] == "transfer" ||
          event["cat"] == "planned")
        continue;
      of_stage[event["args"]["stage"]].push_back(event);
    }
    ASSERT_EQ(of_stage.size(), static_cast<size_t>(n));
    int moves = 0;
    for (auto& [stage, events] : of_stage) {
      std::sort(events.begin(), events.end(),
                [](const Json& a, const Json& b) { return a["ts"].get<double>() < b["ts"].get<double>(); });
      ASSERT_EQ(events.size(), static_cast<size_t>(c.steps) * (2 * n + 1));
      EXPECT_EQ(JobOf(events[0]), graph.route()->First(stage));
      for (size_t i = 1; i < events.size(); ++i) {
        const Json &before = events[i - 1], &event = events[i];
        EXPECT_EQ(JobOf(event), graph.route()->After(JobOf(before))) << event;
        constexpr double kRounding = 0.003;  // of times in microseconds
        EXPECT_LE(before["ts"].get<double>() + before["dur"].get<double>(),
                  event["ts"].get<double>() + kRounding)
            << before << " and " << event << " have the state at once";
        moves += before["args"]["rank"] != event["args"]["rank"];
      }
      if (HasFailure()) return;
    }
    // All the while, and not only from step to step.
    EXPECT_GE(moves, c.steps * n * n);
  }
}

// No stage is gathered, reduced or scattered: each job gets the state from one rank, and only states move.
TEST_F(Migrating, Summary_ShowsStatesAlone) {
  Case c;
  Train(RunFile(c), {"--processes", "2"}, "out");
  if (HasFatalFailure()) return;
  const Json summary = Json::parse(ReadWholeFile(folder_ / "out/summary.json"));
  EXPECT_GT(summary["bytes_sent"]["state"].get<int64_t>(), 0);
  for (const char* none : {"weights", "gradient", "gradient_sum", "activation", "input_gradient"})
    EXPECT_EQ(summary["bytes_sent"][none], 0) << none;
  EXPECT_EQ(summary["peak_weight_versions"].get<std::vector<int>>(), std::vector<int>(c.n, 2));
}

}  // namespace
}  // namespace weft::migrating_test
