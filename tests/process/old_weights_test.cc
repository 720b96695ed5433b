// Real trainings on old weights, with the real programs: under every rule, with every placement and number of
// processes, the numbers are those of the plain loop that keeps old parameters. The trainings follow one
// another on the same worker processes.
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/standing_workers.h"

namespace weft::old_weights_test {
namespace {

using Json = nlohmann::json;

constexpr char kAdamW[] = "{adamw: {lr: 3.0e-3, weight_decay: 0.1}}";
constexpr char kSgd[] = "{sgd: {lr: 0.05, momentum: 0.9, weight_decay: 0.01}}";

struct Sizes {
  int stages = 4, microbatches = 4, steps = 20;
  std::string optimizer = kAdamW;
};

std::string GptRun(const TestFolder& folder, const std::string& schedule, const Sizes& sizes) {
  return absl::StrCat(
      "name: old\nmodel: {gpt: {layers: 2, width: 32, heads: 2, context: 16, dropout: 0.1}}\n",
      "data: {text: {path: ", folder / "text.txt", "}}\n", "train: {steps: ", sizes.steps,
      ", batch: 12, microbatches: ", sizes.microbatches, ", seed: 5, optimizer: ", sizes.optimizer,
      "}\nstages: ", sizes.stages, "\nschedule: ", schedule, "\n");
}

std::string MlpRun(const TestFolder& folder, const std::string& schedule, const Sizes& sizes) {
  return absl::StrCat(
      "name: old\nmodel: {mlp: {layers: 4, width: 48, inputs: 64, classes: 10}}\n",
      "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx", "}}\n",
      "train: {steps: ", sizes.steps, ", batch: 12, microbatches: ", sizes.microbatches,
      ", seed: 2, optimizer: ", sizes.optimizer, "}\nstages: ", sizes.stages, "\nschedule: ", schedule, "\n");
}

std::string ResNetRun(const TestFolder& folder, const std::string& schedule, const Sizes& sizes) {
  return absl::StrCat(
      "name: old\nmodel: {resnet18: {width: 4, channels: 1, size: 8, classes: 10}}\n",
      "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx", "}}\n",
      "train: {steps: ", sizes.steps, ", batch: 12, microbatches: ", sizes.microbatches,
      ", seed: 4, optimizer: ", sizes.optimizer, "}\nstages: ", sizes.stages, "\nschedule: ", schedule, "\n");
}

std::string BigEndian(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
          static_cast<char>(v)};
}

void WriteData(const TestFolder& folder) {
  std::mt19937 rng(3);
  const char* words[] = {"warp ", "weft ", "loom ", "shuttle ", "reed ", "cloth "};
  std::string text;
  while (text.size() < 20000) text += words[rng() % 6];
  folder.Write("text.txt", text);
  std::string images = BigEndian(0x803) + BigEndian(240) + BigEndian(8) + BigEndian(8);
  std::string labels = BigEndian(0x801) + BigEndian(240);
  for (int i = 0; i < 240; ++i) {
    const int label = static_cast<int>(rng() % 10);
    labels += static_cast<char>(label);
    for (int p = 0; p < 64; ++p) images += static_cast<char>(p % 10 == label ? 200 + rng() % 50 : rng() % 60);
  }
  folder.Write("images.idx", images);
  folder.Write("labels.idx", labels);
}

std::vector<double> ReadLosses(const std::string& folder) {
  std::vector<double> losses;
  std::ifstream file(folder + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) losses.push_back(Json::parse(line)["loss"]);
  return losses;
}

struct Trained {
  CheckpointTensors tensors;
  std::vector<double> losses;
};

class OldWeights : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { workers_ = std::make_unique<StandingWorkers>(5); }
  static void TearDownTestSuite() { workers_.reset(); }
  void SetUp() override { WriteData(folder_); }

  // Trains by the plain loop.
  Trained TrainReference(const std::string& file_text) {
    const std::string file = folder_.Write("run.yaml", file_text);
    return ReadTrained(
        Command::Run({"weft", "train", file, "--reference", "--overwrite", "--out", folder_ / "out"}, 120));
  }
  Trained Train(const std::string& file_text, int processes) {
    const std::string file = folder_.Write("run.yaml", file_text);
    return ReadTrained(workers_->Train(file, {"--processes", absl::StrCat(processes)}, folder_ / "out"));
  }

  Json Summary() const { return Json::parse(ReadWholeFile(folder_ / "out/summary.json")); }

  // The schedules are one training, placed differently.
  template <typename RunText>
  Trained ExpectReference(const RunText& run, const std::vector<std::string>& schedules,
                          const std::vector<int>& processes) {
    const Trained reference = TrainReference(run(schedules[0]));
    EXPECT_FALSE(reference.tensors.empty());
    for (const std::string& schedule : schedules) {
      for (const int count : processes) {
        SCOPED_TRACE(absl::StrCat(schedule, " on ", count, " processes"));
        const Trained trained = Train(run(schedule), count);
        EXPECT_EQ(trained.tensors, reference.tensors) << "trained weights differ";
        EXPECT_EQ(trained.losses, reference.losses);
        if (HasFailure()) return reference;
      }
    }
    return reference;
  }

  TestFolder folder_;

 private:
  Trained ReadTrained(const CommandResult& r) const {
    EXPECT_EQ(r.code, 0) << r.err;
    if (r.code != 0) return {};
    return {ReadTensors(folder_ / "out/checkpoint"), ReadLosses(folder_ / "out")};
  }

  inline static std::unique_ptr<StandingWorkers> workers_;
};

std::vector<std::string> Cyclic(const std::string& rule, int n) {
  std::vector<std::string> schedules;
  for (const std::string& base :
       {std::string("ddp: "), std::string("fsdp: "), std::string("gpipe: "), std::string("1f1b: "),
        std::string("cdp_mp: "), absl::StrCat("lpp: {groups: 1, ranks: ", n, "}"),
        absl::StrCat("lpp: {groups: ", n, ", ranks: 1}")}) {
    schedules.push_back(absl::StrCat("{", base, ", rule: ", rule, "}"));
  }
  if (n == 4) schedules.push_back(absl::StrCat("{lpp: {groups: 2, ranks: 2}, rule: ", rule, "}"));
  return schedules;
}

TEST_F(OldWeights, CyclicRulesOnAnyPlacementAndProcesses_EndWithTheReferencesBits) {
  std::vector<Trained> by_rule;
  for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
    const auto gpt = [&](const std::string& s) { return GptRun(folder_, s, {}); };
    by_rule.push_back(ExpectReference(gpt, Cyclic(rule, 4), {1, 2, 4}));
    const auto mlp = [&](const std::string& s) { return MlpRun(folder_, s, {3, 3, 20, kSgd}); };
    ExpectReference(mlp, Cyclic(rule, 3), {1, 3});
    if (HasFailure()) return;
  }
  by_rule.push_back(TrainReference(GptRun(folder_, "gpipe", {})));
  EXPECT_NE(by_rule[0].tensors, by_rule[1].tensors) << "v1 and v2 must differ";
  EXPECT_NE(by_rule[0].tensors, by_rule[2].tensors) << "v1 must differ from sync";
  EXPECT_NE(by_rule[1].tensors, by_rule[2].tensors) << "v2 must differ from sync";
}

// Statistics of batch norms follow their micro-batches: newest averages, moved by what old weights measured.
TEST_F(OldWeights, BatchNorms_EndWithTheReferencesBits) {
  for (const Sizes& sizes : {Sizes{3, 3, 20, kSgd}, Sizes{4, 4, 20, kAdamW}}) {
    const auto run = [&](const std::string& s) { return ResNetRun(folder_, s, sizes); };
    const std::string lpp = absl::StrCat("lpp: {groups: 1, ranks: ", sizes.stages, "}");
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      std::vector<std::string> schedules;
      for (const std::string& base : {std::string("ddp: "), std::string("1f1b: "), lpp}) {
        schedules.push_back(absl::StrCat("{", base, ", rule: ", rule, "}"));
      }
      const Trained trained = ExpectReference(run, schedules, {2});
      if (HasFailure()) return;
      EXPECT_TRUE(std::isfinite(trained.losses.back()));
    }
    ExpectReference(run, {"pipedream_2bw"}, {2});
  }
}

TEST_F(OldWeights, FewSizes_EndWithTheReferencesBits) {
  for (const int n : {1, 2}) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      const auto mlp = [&](const std::string& s) { return MlpRun(folder_, s, {n, n, 20, kSgd}); };
      ExpectReference(mlp, Cyclic(rule, n), {n});
    }
  }
  // The second rule reads the newest with one stage.
  const Sizes one{1, 1, 20, kSgd};
  EXPECT_EQ(TrainReference(MlpRun(folder_, "{ddp: , rule: cdp_v2}", one)).tensors,
            TrainReference(MlpRun(folder_, "ddp", one)).tensors);
}

// Gradients go round as running sums, and weights from holder to holder: between N ranks on N processes N-1
// times the weights of all stages a step, each.
TEST_F(OldWeights, CyclicDdp_SendsRunningSumsAndVersionsPointToPoint) {
  for (const int n : {3, 4}) {
    constexpr int kSteps = 5;
    Train(MlpRun(folder_, "{ddp: , rule: cdp_v2}", {n, n, kSteps, kSgd}), n);
    const Json summary = Summary();
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(summary["peak_bytes"][rank]["optimizer"] > 0, rank == n - 1) << "the home alone has it";
    }
    const Json sent = summary["bytes_sent"];
    EXPECT_EQ(sent["gradient"], 0) << "nothing is sent to be summed elsewhere";
    EXPECT_EQ(sent["activation"], 0);
    int64_t parameters = 0, of_last_stage = 0;
    for (const auto& [name, bytes] : ReadWeights(folder_ / "out/checkpoint")) {
      parameters += static_cast<int64_t>(bytes.size());
      if (name.starts_with(absl::StrCat("stage0", n - 1)))
        of_last_stage += static_cast<int64_t>(bytes.size());
    }
    const int64_t of_a_hop = sent["gradient_sum"].get<int64_t>() / (kSteps * (n - 1));
    EXPECT_EQ(of_a_hop * kSteps * (n - 1), sent["gradient_sum"]);
    EXPECT_GE(of_a_hop, parameters);
    EXPECT_LT(of_a_hop, parameters + parameters / 10) << "no more than what aligns the parameters";
    // On each stage but the last, the first holder that installs late gets nothing in the first step.
    const int64_t first = sent["gradient_sum"].get<int64_t>() - sent["weights"].get<int64_t>();
    const int64_t late = parameters - of_last_stage;
    EXPECT_GT(late, 0);
    EXPECT_GE(first, late);
    EXPECT_LT(first, late + late / 10);
  }
}

TEST_F(OldWeights, Pyramid_HoldsOneActivationARank) {
  for (const int n : {3, 4}) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      Train(MlpRun(folder_, absl::StrCat("{cdp_mp: , rule: ", rule, "}"), {n, n, 20, kSgd}), 3);
      const Json summary = Summary();
      EXPECT_EQ(summary["ranks"], n * (n + 1) / 2);
      EXPECT_EQ(summary["peak_activations"], Json(std::vector<int>(n * (n + 1) / 2, 1)));
      EXPECT_EQ(summary["bytes_sent"]["gradient"], 0);
    }
  }
}

TEST_F(OldWeights, FirstStep_IsTheSynchronousOne) {
  for (const std::string schedule : {"{gpipe: , rule: cdp_v1}", "{gpipe: , rule: cdp_v2}", "pipedream_2bw"}) {
    const Sizes first{4, 4, 1, kAdamW};
    Train(GptRun(folder_, schedule, first), 2);
    const CheckpointTensors trained = ReadWeights(folder_ / "out/checkpoint");
    TrainReference(GptRun(folder_, "gpipe", first));
    EXPECT_EQ(trained, ReadWeights(folder_ / "out/checkpoint")) << schedule;
  }
}

TEST_F(OldWeights, PipeDream_EndsWithTheReferencesBits) {
  for (const auto& optimizer : {kAdamW, kSgd}) {
    const auto gpt = [&](const std::string& s) { return GptRun(folder_, s, {4, 1, 24, optimizer}); };
    ExpectReference(gpt, {"pipedream"}, {1, 2, 4});
    const auto mlp = [&](const std::string& s) { return MlpRun(folder_, s, {3, 1, 24, optimizer}); };
    ExpectReference(mlp, {"pipedream"}, {1, 3});
    for (const int microbatches : {2, 6}) {
      const auto flat = [&](const std::string& s) {
        return MlpRun(folder_, s, {4, microbatches, 20, optimizer});
      };
      ExpectReference(flat, {"pipedream_2bw"}, {1, 4});
    }
  }
}

TEST_F(OldWeights, PipeDreamOfFewStages_EndsWithTheReferencesBits) {
  for (const int n : {1, 2}) {
    const auto one = [&](const std::string& s) { return MlpRun(folder_, s, {n, 1, 20, kSgd}); };
    ExpectReference(one, {"pipedream"}, {n});
    const auto batch = [&](const std::string& s) { return MlpRun(folder_, s, {n, 2 * n, 20, kAdamW}); };
    ExpectReference(batch, {"pipedream_2bw"}, {n});
  }
  // Each micro-batch reads with one stage what the one before it made.
  const Sizes one{1, 1, 20, kSgd};
  EXPECT_EQ(Train(MlpRun(folder_, "pipedream", one), 1).tensors,
            TrainReference(MlpRun(folder_, "gpipe", one)).tensors);
}

TEST_F(OldWeights, EveryActivationPolicy_EndsWithTheReferencesBits) {
  const auto gpt = [&](const std::string& s) { return GptRun(folder_, s, {}); };
  ExpectReference(
      gpt,
      {"{ddp: , rule: cdp_v2, activations: recompute}", "{fsdp: , rule: cdp_v2, activations: recompute}",
       "{gpipe: , rule: cdp_v2, activations: offload}", "{fsdp: , rule: cdp_v2, activations: offload}"},
      {2});
}

// The second and the fourth stage are a GELU alone.
TEST_F(OldWeights, StagesWithoutParameters_EndWithTheReferencesBits) {
  const auto run = [&](const std::string& schedule) {
    return absl::StrCat(
        "name: old\nmodel: {mlp: {layers: 3, width: 48, inputs: 64, dropout: 0.1, gelu: apart}}\n",
        "data: {idx: {images: ", folder_ / "images.idx", ", labels: ", folder_ / "labels.idx", "}}\n",
        "train: {steps: 20, batch: 20, microbatches: 5, seed: 2, optimizer: ", kAdamW, "}\n",
        "stages: 5\nschedule: ", schedule, "\n");
  };
  const Trained trained =
      ExpectReference(run,
                      {"1f1b", "zb_h1", "ddp", "{fsdp: {shard: width}}",
                       "{custom: {workers: 5, compute: \"(s + (k != forward)) % W\", weights: s}}"},
                      {2, 5});
  EXPECT_EQ(trained.tensors.size(), 18u) << "weight and bias of three layers, each with two moments of AdamW";
  for (const std::string rule : {"cdp_v1", "cdp_v2"}) ExpectReference(run, Cyclic(rule, 5), {1, 3});
  ExpectReference(run, {"pipedream_2bw"}, {1, 5});
}

// A formula of one's own: other staleness on every stage, weights fetched, the backward on another rank.
TEST_F(OldWeights, CustomFormula_EndsWithTheReferencesBits) {
  const auto mlp = [&](const std::string& s) { return MlpRun(folder_, s, {4, 3, 20, kSgd}); };
  ExpectReference(
      mlp,
      {"{custom: {workers: 4, compute: s, staleness: S - 1 - s}}",
       "{custom: {workers: 3, compute: b, weights: s % W, staleness: S - 1 - s, priority: \"(k != "
       "forward)*99 + b*9 + s\"}}",
       "{custom: {workers: 2, compute: \"(s + (k != forward)) % W\", weights: s % W, staleness: S - 1 - s}}",
       "{custom: {workers: 2, compute: s % W, split_backward: true, staleness: S - 1 - s}}"},
      {1, 2});
  // A limit goes with weights that are newest on the first stage.
  ExpectReference(mlp, {"{custom: {workers: 4, compute: s, staleness: s, limit: S - s}}"}, {1, 2});
}

}  // namespace
}  // namespace weft::old_weights_test
