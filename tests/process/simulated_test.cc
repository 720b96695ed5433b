// What the simulator says of memory and traffic is what a real training measures: the most activations alive
// on each rank, and the bytes sent from rank to rank by class.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/run_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/run/model_layers.h"
#include "proto/run/run_schedule.h"
#include "schedules/simulate.h"
#include "tests/process/command.h"

namespace weft {
namespace {

using Json = nlohmann::json;

std::string Text(int bytes) {
  std::mt19937 rng(7);
  std::string text;
  while (static_cast<int>(text.size()) < bytes) text += static_cast<char>('a' + rng() % 26);
  return text;
}

// Sizes at which every stage's parameters cut into equal slices for two and four replicas.
std::string GptRun(const TestFolder& folder, const std::string& schedule) {
  return absl::StrCat(
      "name: measured\nmodel: {gpt: {layers: 6, width: 64, heads: 2, context: 32}}\n",
      "data: {text: {path: ", folder / "text.txt", "}}\n",
      "train: {steps: 3, batch: 8, microbatches: 4, seed: 5}\nstages: 4\nschedule: ", schedule, "\n");
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
    options.output.push_back(4.0 * static_cast<double>(layers[layer - 1].output_elements()) *
                             run.microbatch_samples());
  }
  const auto result = Simulate(Graph(*schedule), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

// For any durations: the rank's forwards of a step, a stage's not more than its limit.
int MostAlive(const Schedule& schedule, Rank rank) {
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

struct Case {
  std::string schedule;
  // The most activations alive follow from the order of a rank's jobs, whatever they last: fixed orders, and
  // ranks that have one micro-batch each. Elsewhere a rank that waits for one job goes on with another that
  // is ready, so that the number depends on durations; limits hold in any case.
  bool exact;
};

const Case kCases[] = {{"ddp", true},
                       {"fsdp", true},
                       {"{fsdp: {shard: width}}", true},
                       {"gpipe", false},
                       {"1f1b", false},
                       {"{lpp: {groups: 2, ranks: 2}}", false},
                       {"{lpp: {groups: 4, ranks: 1}}", true},
                       {"{fslpp: {groups: 2, ranks: 2}}", false},
                       {"{depth_first: {ranks: 2}}", false},
                       {"{breadth_first: {ranks: 2}}", false},
                       {"{interleaved: {ranks: 2}}", true},
                       {"zb_h1", true},
                       {"zb_h2", true},
                       {"zb_v", true},
                       {"v_half", true},
                       {"v_min", true},
                       {"{zb_h1: {}, activations: recompute}", true},
                       {"{zb_v: {}, activations: offload}", true}};

TEST(MeasuredRun, EveryFamily_HasTheSimulatorsActivationsAndBytes) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.schedule);
    const std::string file = folder.Write("run.yaml", GptRun(folder, c.schedule));
    const CommandResult r =
        Command::Run({"weft", "train", file, "--processes", "2", "--out", folder / "out"}, 120);
    ASSERT_EQ(r.code, 0) << r.err;
    const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
    const auto run = ReadRunFile(file);
    ASSERT_TRUE(run.ok()) << run.status();
    const SimulationResult simulated = Simulated(*run);
    ASSERT_EQ(summary["peak_activations"].size(), simulated.ranks.size());
    for (size_t rank = 0; rank < simulated.ranks.size(); ++rank) {
      const int measured = summary["peak_activations"][rank];
      if (c.exact) {
        EXPECT_EQ(measured, simulated.ranks[rank].peak_activations) << "rank " << rank;
      } else {
        EXPECT_GE(measured, 1) << "rank " << rank;
        EXPECT_LE(measured, MostAlive(*ScheduleOf(*run), static_cast<Rank>(rank))) << "rank " << rank;
      }
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

}  // namespace
}  // namespace weft
