// Tests that the simulator's memory and traffic are what a real training measures: the most activations alive
// on each rank, under every family, when it simulates the order that the run's jobs really took; the same
// from the schedule alone where no duration can change it; and the bytes sent from rank to rank by class.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/run_file.h"
#include "client/files/schedule_file.h"
#include "client/files/trace_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "schedules/simulator/simulate.h"
#include "tests/process/command.h"
#include "tests/process/measured_peaks.h"
#include "tests/process/run_files.h"

namespace weft::simulated_test {
namespace {

using Json = nlohmann::json;

// Sizes at which every stage's parameters cut into equal slices for two and four replicas.
std::string GptRun(const TestFolder& folder, const std::string& schedule, int microbatches) {
  return absl::StrCat("name: measured\nmodel: {gpt: {layers: 6, width: 64, heads: 2, context: 32}}\n",
                      "data: {text: {path: ", folder / "text.txt", "}}\n",
                      "train: {steps: 3, batch: 8, microbatches: ", microbatches,
                      ", seed: 5}\nstages: 4\nschedule: ", schedule, "\n");
}

// The same for stages that are no chain: a stem, two towers, a head.
std::string TwoTowerRun(const TestFolder& folder, const std::string& schedule, int microbatches) {
  return absl::StrCat(
      "name: measured\nmodel: {two_tower: {stem: 1, layers: 2, width: 64, inputs: 64, classes: 16}}\n",
      "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx", "}}\n",
      "train: {steps: 3, batch: 16, microbatches: ", microbatches,
      ", seed: 5}\nstages: [1, 2, 2, 1]\nschedule: ", schedule, "\n");
}

SimulationResult Simulated(const RunSpec& run) {
  const auto schedule = ScheduleOf(run);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const std::vector<LayerCount> layers = CountLayers(run.model);
  SimulationOptions options;
  options.steps = run.train.steps;
  options.weight.clear();
  size_t layer = 0;
  for (const int count : run.layers_of_stage) {
    double parameters = 0;
    for (int i = 0; i < count; ++i) parameters += static_cast<double>(layers[layer++].parameters);
    options.weight.push_back(4 * parameters);
    options.output.push_back(4.0 * static_cast<double>(layers[layer - 1].output.elements(1)) *
                             run.microbatch_samples());
  }
  const auto result = Simulate(Graph(*schedule), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

// Returns a bound for any durations: the rank's forwards of a step, a stage's not more than its limit.
int MaxAlive(const Schedule& schedule, Rank rank) {
  int most = 0;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    int forwards = 0;
    for (int b = 0; b < schedule.microbatches; ++b) {
      forwards += schedule.compute(Job::Compute(0, stage, b, JobKind::kForward)) == rank;
    }
    const auto limit = schedule.limit ? schedule.limit(rank, stage) : std::nullopt;
    most += std::min(forwards, limit.value_or(forwards));
  }
  return most;
}

// The ranks whose most activations follow from the schedule whatever jobs last (PeakActivations in
// tests/property/schedule_property_test.cc proves it); elsewhere a rank that waits for one job goes on with
// another that is ready.
enum class Decided { kAll, kFirst, kLast, kNone };

struct Case {
  std::string schedule;
  Decided decided;
  int microbatches = 4;
  bool two_tower = false;
};

const Case kCases[] = {
    {"ddp", Decided::kAll},
    {"fsdp", Decided::kAll},
    {"{fsdp: {shard: width}}", Decided::kAll},
    {"gpipe", Decided::kFirst},
    {"1f1b", Decided::kLast},
    {"{lpp: {groups: 1, ranks: 1}}", Decided::kAll},
    {"{lpp: {groups: 2, ranks: 2}}", Decided::kNone},
    {"{lpp: {groups: 2, ranks: 1}}", Decided::kAll},
    {"{lpp: {groups: 4, ranks: 1}}", Decided::kAll},
    {"{fslpp: {groups: 2, ranks: 2}}", Decided::kNone},
    {"{depth_first: {ranks: 2}}", Decided::kNone},
    {"{breadth_first: {ranks: 2}}", Decided::kNone},
    {"{interleaved: {ranks: 2}}", Decided::kAll},
    {"zb_h1", Decided::kAll},
    {"zb_h2", Decided::kAll},
    {"zb_v", Decided::kAll},
    {"v_half", Decided::kAll},
    {"v_min", Decided::kAll},
    {"dualpipe", Decided::kAll, 8},
    {"dualpipe_v", Decided::kAll, 8},
    {"{custom: {workers: 4, compute: \"(s + b) % W\", weights: \"s % W\"}}", Decided::kNone},
    {"{custom: {workers: 4, compute: \"k == forward ? s % W : (s + 1) % W\", weights: \"s % W\"}}",
     Decided::kAll},
    {"{custom: {workers: 2, compute: \"s % W\", split_backward: true}}", Decided::kNone},
    {"{zb_h1: {}, activations: recompute}", Decided::kAll},
    {"{zb_v: {}, activations: offload}", Decided::kAll},
    {"ddp", Decided::kAll, 4, true},
    {"fsdp", Decided::kAll, 4, true},
    {"1f1b", Decided::kLast, 4, true},
    {"zb_h1", Decided::kAll, 4, true},
    {"dualpipe_v", Decided::kAll, 8, true}};

bool IsDecided(Decided decided, size_t rank, size_t ranks) {
  return decided == Decided::kAll || (decided == Decided::kFirst && rank == 0) ||
         (decided == Decided::kLast && rank + 1 == ranks);
}

// The most activations of each rank in the order in which the run's jobs really went, step by step.
std::vector<int> ActivationsOfTrace(const std::string& path, size_t ranks) {
  const auto trace = ReadTrace(path);
  EXPECT_TRUE(trace.ok()) << trace.status();
  // A rank computes a step to its end before it starts the next, so that the most of a run is the most of a
  // step. Updates hold no activations, and may come later: a stage's last gradient can still be on its way
  // when another stage's new weights are here.
  std::vector<double> ended(ranks, -1);
  std::vector<int> step(ranks, 0);
  std::vector<DrawnJob> jobs = trace->jobs;
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const DrawnJob& a, const DrawnJob& b) { return a.start < b.start; });
  for (const DrawnJob& j : jobs) {
    if (!HasMicrobatch(j.job.kind)) continue;
    EXPECT_GE(j.job.step, step[j.rank]) << Describe(j.job);
    if (j.job.step > step[j.rank]) {
      EXPECT_GE(j.start, ended[j.rank]) << Describe(j.job);
    }
    step[j.rank] = std::max(step[j.rank], j.job.step);
    ended[j.rank] = std::max(ended[j.rank], j.end);
  }
  std::vector<int> peaks(ranks);
  for (int t = 0; t <= jobs.back().job.step; ++t) {
    const auto schedule = ReadScheduleFile(path, {0, 0, {}, t});
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    const auto run = Simulate(Graph(*schedule), SimulationOptions());
    EXPECT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->ranks.size(), ranks);
    for (size_t r = 0; r < ranks; ++r) peaks[r] = std::max(peaks[r], run->ranks[r].peak_activations);
  }
  return peaks;
}

TEST(MeasuredRun, EveryFamily_HasTheSimulatorsActivationsAndBytes) {
  TestFolder folder;
  folder.Write("text.txt", RandomLetters(20000));
  WriteIdx(folder, 256, 8);
  ComparedByClass compared{};
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.schedule + (c.two_tower ? ", two towers" : ""));
    const auto& run_of = c.two_tower ? TwoTowerRun : GptRun;
    const std::string file = folder.Write("run.yaml", run_of(folder, c.schedule, c.microbatches));
    const auto run = ReadRunFile(file);
    ASSERT_TRUE(run.ok()) << run.status();
    const SimulationResult simulated = Simulated(*run);
    const size_t ranks = simulated.ranks.size();
    const CommandResult r = Command::Run({"weft", "train", file, "--processes", ranks == 1 ? "1" : "2",
                                          "--overwrite", "--out", folder / "out"},
                                         120);
    ASSERT_EQ(r.code, 0) << r.err;
    const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
    ASSERT_EQ(summary["peak_activations"].size(), ranks);
    ExpectPredictedPeaks(folder / "out", *run, *ScheduleOf(*run), &compared);
    const std::vector<int> replayed = ActivationsOfTrace(folder / "out/trace.json", ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      const int measured = summary["peak_activations"][rank];
      EXPECT_EQ(measured, replayed[rank]);
      if (IsDecided(c.decided, rank, ranks)) {
        EXPECT_EQ(measured, simulated.ranks[rank].peak_activations);
      }
      EXPECT_LE(measured, MaxAlive(ScheduleOf(*run)->scheme, static_cast<Rank>(rank)));
    }
    for (int k = 0; k < kTensorKinds; ++k) {
      const auto kind = static_cast<TensorKind>(k);
      const double bytes =
          std::accumulate(simulated.ranks.begin(), simulated.ranks.end(), 0.0,
                          [&](double sum, const RankStats& rank) { return sum + rank.sent_by_kind[k]; });
      EXPECT_EQ(summary["bytes_sent"].value(std::string(TensorKindName(kind)), 0.0), bytes)
          << TensorKindName(kind);
    }
  }
}

// Two of the four ranks own two stages each, the others none: each of these fetches both of its stages, once
// for the forwards of its four micro-batches, and once for their backwards.
TEST(MeasuredRun, FslppOnFourProcesses_FetchesEachStageOnceForwardAndOnceBackward) {
  TestFolder folder;
  folder.Write("text.txt", RandomLetters(20000));
  const std::string file =
      folder.Write("run.yaml", GptRun(folder, "{fslpp: {groups: 2, ranks: 2}}", /*microbatches=*/8));
  const auto run = ReadRunFile(file);
  ASSERT_TRUE(run.ok()) << run.status();
  std::vector<int64_t> fetches;
  for (const RankStats& rank : Simulated(*run).ranks) fetches.push_back(rank.weight_fetches);
  const int steps = run->train.steps;
  EXPECT_EQ(fetches, (std::vector<int64_t>{0, 4 * steps, 4 * steps, 0}));

  const CommandResult trained =
      Command::Run({"weft", "train", file, "--processes", "4", "--out", folder / "out"}, 120);
  ASSERT_EQ(trained.code, 0) << trained.err;
  int64_t parameters = 0;
  for (const LayerCount& layer : CountLayers(run->model)) parameters += layer.parameters;
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
  EXPECT_EQ(summary["bytes_sent"].value("weights", int64_t{0}), 2 * steps * 4 * parameters);

  ASSERT_EQ(Command::Run({"weft", "train", file, "--reference", "--out", folder / "plain"}, 120).code, 0);
  for (const char* stage : {"00", "01", "02", "03"}) {
    const std::string name = absl::StrCat("checkpoint/stage", stage, ".safetensors");
    EXPECT_EQ(ReadWholeFile(folder / ("out/" + name)), ReadWholeFile(folder / ("plain/" + name))) << stage;
  }
}

// The order that a greedy run happened to take is run once more job by job, with the same result.
TEST(MeasuredRun, GreedyRunFromItsActions_RepeatsTheOrderInEveryStep) {
  TestFolder folder;
  folder.Write("text.txt", RandomLetters(20000));
  const auto train = [&](const std::string& schedule, const std::string& out) {
    const std::string file = folder.Write("run.yaml", GptRun(folder, schedule, 4));
    return Command::Run({"weft", "train", file, "--processes", "2", "--overwrite", "--out", folder / out},
                        120);
  };
  const CommandResult first = train("{lpp: {groups: 2, ranks: 2}}", "first");
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string actions = ReadWholeFile(folder / "first/actions.csv");
  const CommandResult again = train("{file: first/actions.csv}", "again");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(ReadWholeFile(folder / "again/actions.csv"), actions);
  for (const char* step : {"0", "1", "2"}) {
    const CommandResult simulated =
        Command::Run({"weft", "simulate", folder / "again/trace.json", "--from-step", step, "-o", "csv"});
    ASSERT_EQ(simulated.code, 0) << simulated.err;
    EXPECT_EQ(simulated.out, actions) << "step " << step;
  }
  for (const char* stage : {"00", "01", "02", "03"}) {
    const std::string name = absl::StrCat("checkpoint/stage", stage, ".safetensors");
    EXPECT_EQ(ReadWholeFile(folder / ("first/" + name)), ReadWholeFile(folder / ("again/" + name)));
  }
}

// ---- one count of memory: what a run is refused by, and what a comparison calls "does not fit"

constexpr const char* kMemorySchedules[] = {"ddp",
                                            "fsdp",
                                            "gpipe",
                                            "1f1b",
                                            "lpp,groups=2,ranks=2",
                                            "fslpp,groups=2,ranks=2",
                                            "zb_h1",
                                            "v_min",
                                            "interleaved,ranks=2"};

std::string RunWithMemory(const TestFolder& folder, const std::string& schedule, int64_t memory) {
  return absl::StrCat(GptRun(folder, absl::StrCat("\"", schedule, "\""), 4), "memory: ", memory, "\n");
}

// The least memory under which the run file is accepted.
int64_t LeastMemory(const TestFolder& folder, const std::string& schedule) {
  int64_t refused = 1, accepted = int64_t{1} << 32;
  while (accepted - refused > 1) {
    const int64_t middle = refused + (accepted - refused) / 2;
    const bool fits = ParseRunFile(folder / "run.yaml", RunWithMemory(folder, schedule, middle)).ok();
    (fits ? accepted : refused) = middle;
  }
  return accepted;
}

Json Compared(const std::string& file, int64_t memory, const std::string& schedule) {
  const CommandResult r =
      Command::Run({"weft", "compare", file, "--memory", absl::StrCat(memory), "-o", "json"});
  const Json json = Json::parse(r.out, nullptr, false);
  for (const Json& entry : json.value("schedules", Json::array())) {
    if (entry["schedule"] == schedule) return entry;
  }
  ADD_FAILURE() << schedule << " is not compared: " << r.err;
  return {};
}

TEST(MemoryVerdict, ComparisonAndRun_AgreeToTheByte) {
  TestFolder folder;
  folder.Write("text.txt", RandomLetters(20000));
  const std::string any = folder.Write("any.yaml", GptRun(folder, "1f1b", 4));
  for (const std::string schedule : kMemorySchedules) {
    SCOPED_TRACE(schedule);
    const int64_t least = LeastMemory(folder, schedule);
    const Json fits = Compared(any, least, schedule), not_quite = Compared(any, least - 1, schedule);
    EXPECT_TRUE(fits["fits"]) << fits;
    EXPECT_LE(fits["peak_bytes"], least);
    EXPECT_FALSE(not_quite["fits"]) << not_quite;
    EXPECT_TRUE(not_quite["valid"]) << not_quite;
    const auto refused =
        ParseRunFile(folder / "run.yaml", RunWithMemory(folder, schedule, least - 1)).status();
    // The message is at the line of `memory`, the file's last, for the reason that the comparison gives.
    const std::string message(refused.message()), reason = not_quite["reason"];
    EXPECT_EQ(message.find(absl::StrCat(folder / "run.yaml", ":7: memory: ")), 0u) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message << " / " << reason;
  }
}

TEST(MemoryVerdict, RunAtTheBorder_TrainsWithinItsBudgetAndOneByteLessIsRefused) {
  TestFolder folder;
  folder.Write("text.txt", RandomLetters(20000));
  // Two jobs of a rank run at once under dualpipe_v.
  for (const std::string schedule :
       {"zb_h1", "dualpipe_v", "dualpipe_v,activations=recompute", "dualpipe_v,activations=offload"}) {
    SCOPED_TRACE(schedule);
    const int64_t least = LeastMemory(folder, schedule);
    const auto train = [&, &name = schedule](int64_t memory) {
      const std::string file = folder.Write("run.yaml", RunWithMemory(folder, name, memory));
      return Command::Run({"weft", "train", file, "--processes", "2", "--overwrite", "--out", folder / "out"},
                          120);
    };
    const CommandResult trained = train(least);
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
    for (const Json& of_rank : summary["peak_bytes"]) {
      int64_t sum = 0;
      for (const auto& [name, bytes] : of_rank.items()) sum += name == "host" ? 0 : bytes.get<int64_t>();
      EXPECT_LE(sum, least);
    }
    for (const int64_t most : summary["most_bytes"]) EXPECT_LE(most, least);
    const CommandResult refused = train(least - 1);
    EXPECT_EQ(refused.code, 78);
    EXPECT_NE(refused.err.find("run.yaml:7: memory: "), std::string::npos) << refused.err;
  }
}

// A user who looks for a schedule that fits has a run that does not.
TEST(MemoryVerdict, RunThatDoesNotFit_IsComparedWithItsOwnBudget) {
  TestFolder folder;
  folder.Write("text.txt", RandomLetters(20000));
  const int64_t least = LeastMemory(folder, "1f1b");
  ASSERT_LT(least, LeastMemory(folder, "ddp"));
  const std::string file = folder.Write("ddp.yaml", RunWithMemory(folder, "ddp", least));
  const CommandResult r = Command::Run({"weft", "compare", file, "-o", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = Json::parse(r.out);
  EXPECT_EQ(json["memory"], least);
  for (const Json& entry : json["schedules"]) {
    if (entry["schedule"] == "ddp") {
      EXPECT_EQ(entry["fits"], false);
    }
    if (entry["schedule"] == "1f1b") {
      EXPECT_EQ(entry["fits"], true);
    }
  }
}

}  // namespace
}  // namespace weft::simulated_test
