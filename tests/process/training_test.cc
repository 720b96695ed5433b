// Real trainings with the real programs: the numbers are those of the plain loop, whatever the schedule and
// the number of processes.
#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"
#include "tests/process/standing_workers.h"

namespace weft::training_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Words in a random order: enough structure that the loss falls within a few steps.
std::string Text(int bytes) {
  std::mt19937 rng(7);
  const char* words[] = {"warp ", "weft ", "loom ", "shuttle ", "reed ", "cloth ", "thread ", "heddle "};
  std::string text;
  while (static_cast<int>(text.size()) < bytes) text += words[rng() % 8];
  return text;
}

std::string GptRun(const TestFolder& folder, const std::string& schedule, int steps,
                   const std::string& stages = "4") {
  return absl::StrCat(
      "name: bits\nmodel: {gpt: {layers: 4, width: 32, heads: 2, context: 32, dropout: 0.1}}\n",
      "data: {text: {path: ", folder / "text.txt", "}, order: sequential}\n", "train: {steps: ", steps,
      ", batch: 8, microbatches: 4, seed: 5, optimizer: {adamw: {lr: 3.0e-3}}}\n", "stages: ", stages,
      "\nschedule: ", schedule, "\n");
}

std::string MlpRun(const TestFolder& folder, const std::string& schedule, int steps) {
  return absl::StrCat("name: bits\nmodel: {mlp: {layers: 4, width: 48, inputs: 64, classes: 10}}\n",
                      "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx",
                      "}, order: sequential}\n", "train: {steps: ", steps,
                      ", batch: 16, microbatches: 4, seed: 2, optimizer: {sgd: {lr: 0.1, momentum: 0.9, "
                      "weight_decay: 0.01}}}\n",
                      "stages: 4\nschedule: ", schedule, "\n");
}

std::vector<double> Losses(const std::string& folder) {
  std::vector<double> losses;
  std::ifstream file(folder + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) losses.push_back(Json::parse(line)["loss"]);
  return losses;
}

const char* kSchedules[] = {"ddp",
                            "gpipe",
                            "1f1b",
                            "{lpp: {groups: 2, ranks: 2}}",
                            "{lpp: {groups: 2, ranks: 4}}",
                            "{lpp: {groups: 4, ranks: 1}}",
                            "{fsdp: {shard: width}}",
                            "{lpp: {groups: 1, ranks: 3}}",
                            "{lpp: {groups: 1, ranks: 1}}"};

// Further families, each on two processes: fetched weights, travelling gradients, split backwards, fixed
// orders.
const char* kOnTwoProcesses[] = {"fsdp",
                                 "{fslpp: {groups: 2, ranks: 2}}",
                                 "{depth_first: {ranks: 2}}",
                                 "{breadth_first: {ranks: 2}}",
                                 "{interleaved: {ranks: 2}}",
                                 "zb_h1",
                                 "zb_h2",
                                 "zb_v",
                                 "v_half",
                                 "v_min",
                                 "dualpipe_v",
                                 "{1f1b: {}, activations: recompute}",
                                 "{1f1b: {}, activations: offload}",
                                 "{zb_h1: {}, activations: recompute}",
                                 "{zb_h1: {}, activations: offload}",
                                 "{fsdp: {}, activations: recompute}",
                                 "{fsdp: {shard: width}, activations: recompute}",
                                 "{fsdp: {shard: width}, activations: offload}"};

int RanksOf(const std::string& schedule) {
  if (schedule.find("ranks: 3") != std::string::npos) return 3;
  if (schedule.find("groups: 2, ranks: 4") != std::string::npos) return 8;
  return schedule.find("groups: 1, ranks: 1") != std::string::npos ? 1 : 4;
}

// The weights that the plain loop over micro-batches ends with.
std::map<std::string, std::string> ReferenceWeights(const TestFolder& folder, const std::string& run) {
  const CommandResult reference = Command::Run({"weft", "train", folder.Write("plain.yaml", run),
                                                "--reference", "--overwrite", "--out", folder / "plain"});
  EXPECT_EQ(reference.code, 0) << reference.err;
  return ReadTensors(folder / "plain/checkpoint");
}

class Training : public OnStandingWorkers {
 protected:
  static CommandResult Train(const TestFolder& folder, const std::string& run, int processes) {
    return Workers().Train(folder.Write("run.yaml", run), {"--processes", absl::StrCat(processes)},
                           folder / "out");
  }
  static void ExpectReferenceBits(const TestFolder& folder,
                                  const std::function<std::string(const std::string&)>& run);
};

void Training::ExpectReferenceBits(const TestFolder& folder,
                                   const std::function<std::string(const std::string&)>& run) {
  const auto want = ReferenceWeights(folder, run("gpipe"));
  const auto initial = ReadTensors(folder / "plain/checkpoint-0");
  ASSERT_FALSE(want.empty());
  ASSERT_NE(want, initial) << "the reference did not train";
  const std::vector<double> losses = Losses(folder / "plain");
  EXPECT_LT(losses.back(), losses.front());
  const auto expect_bits = [&](const std::string& schedule, int processes) {
    SCOPED_TRACE(absl::StrCat(schedule, " on ", processes, " processes"));
    const CommandResult r = Train(folder, run(schedule), processes);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(ReadTensors(folder / "out/checkpoint-0"), initial) << "initial weights differ";
    EXPECT_EQ(ReadTensors(folder / "out/checkpoint"), want) << "trained weights differ";
    EXPECT_EQ(Losses(folder / "out"), losses);
    EXPECT_TRUE(std::filesystem::exists(folder / "out/checkpoint/model.safetensors.index.json"));
  };
  for (const std::string schedule : kSchedules) {
    for (int processes : {1, 2, 4}) {
      if (processes <= RanksOf(schedule)) expect_bits(schedule, processes);
    }
  }
  for (const std::string schedule : kOnTwoProcesses) expect_bits(schedule, 2);
}

TEST_F(Training, GptUnderEveryFamilyOnOneTwoFourProcesses_EndsWithTheReferencesBits) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  ExpectReferenceBits(folder, [&](const std::string& schedule) { return GptRun(folder, schedule, 4); });
}

TEST_F(Training, MlpUnderEveryFamilyOnOneTwoFourProcesses_EndsWithTheReferencesBits) {
  TestFolder folder;
  WriteIdx(folder, 256, 8);
  ExpectReferenceBits(folder, [&](const std::string& schedule) { return MlpRun(folder, schedule, 4); });
}

// Stages that are no chain: towers on ranks of their own, and every way in which tensors and weights travel.
TEST_F(Training, TwoTowerCutInManyWays_EndsWithTheReferencesBits) {
  TestFolder folder;
  WriteIdx(folder, 256, 8);
  for (const std::string stages : {"6", "3", "[1, 2, 2, 1]"}) {
    const auto run = [&](const std::string& schedule) {
      return absl::StrCat(
          "name: bits\nmodel: {two_tower: {stem: 1, layers: 2, width: 48, inputs: 64, classes: 10, dropout: "
          "0.1}}\n",
          "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx", "}}\n",
          "train: {steps: 4, batch: 24, microbatches: 6, seed: 2, optimizer: {adamw: {lr: "
          "3.0e-3}}}\nstages: ",
          stages, "\nschedule: ", schedule, "\n");
    };
    const auto want = ReferenceWeights(folder, run("gpipe"));
    ASSERT_FALSE(want.empty());
    for (const std::string schedule :
         {"1f1b", "zb_h1", "{1f1b: {}, activations: recompute}", "{1f1b: {}, activations: offload}", "fsdp",
          "{fsdp: {shard: width}}", "{lpp: {groups: 2, ranks: 3}}",
          "{custom: {workers: 3, compute: \"k == forward ? s % W : (s + 1) % W\", weights: \"s % W\"}}"}) {
      SCOPED_TRACE(absl::StrCat(schedule, ", stages ", stages));
      const CommandResult r = Train(folder, run(schedule), 3);
      ASSERT_EQ(r.code, 0) << r.err;
      EXPECT_EQ(ReadTensors(folder / "out/checkpoint"), want) << "trained weights differ";
    }
  }
}

// Formulas and rows of actions: the scheme is in the run file, not in the programs.
TEST_F(Training, SchemesOfTheRunFileItself_EndWithTheReferencesBits) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  const auto csv =
      Command::Run({"weft", "simulate", "v_half", "--stages", "4", "--microbatches", "4", "-o", "csv"});
  ASSERT_EQ(csv.code, 0) << csv.err;
  folder.Write("rows.csv", csv.out);
  const auto run = [&](const std::string& schedule) { return GptRun(folder, schedule, 4); };
  const auto want = ReferenceWeights(folder, run("gpipe"));
  ASSERT_FALSE(want.empty());
  for (const std::string schedule :
       {"{custom: {workers: 4, compute: \"(R*b) % W + s % R\", R: 2}}",
        "{custom: {workers: 4, compute: \"s < S/2 ? b % (W/2) : W/2 + b % (W/2)\", weights: \"s\"}}",
        "{custom: {workers: 4, compute: \"(s + t) % W\", weights: s, period: 4}}",
        "{custom: {workers: 4, compute: \"(b + t) % W\", period: 4}}",
        "{custom: {workers: 4, compute: s, limit: S - s, split_backward: true}}", "{file: rows.csv}",
        // Backwards elsewhere than their forwards: they start over from the stage's input.
        "{custom: {workers: 4, compute: \"k == forward ? s : W - 1 - s\", weights: s}}",
        "{custom: {workers: 4, compute: \"k == forward ? b % 2 : 2 + s % 2\", weights: \"2 + s % 2\", "
        "split_backward: true}}",
        "{custom: {workers: 3, compute: \"(k == forward ? s + t : s + b) % W\", weights: \"b % W\", period: "
        "3}}"}) {
    SCOPED_TRACE(schedule);
    const CommandResult r = Train(folder, run(schedule), 2);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(ReadTensors(folder / "out/checkpoint"), want);
    EXPECT_EQ(Losses(folder / "out"), Losses(folder / "plain"));
  }
}

// Needs more micro-batches than the other families' runs have: two copies of the weights, and a forward and a
// backward of a rank at once.
TEST_F(Training, BothDirectionsWithTwoCopiesOfTheWeights_EndsWithTheReferencesBits) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  const auto run = [&](const std::string& schedule) {
    std::string text = GptRun(folder, schedule, 4);
    return text.replace(text.find("microbatches: 4"), 15, "microbatches: 8");
  };
  const auto want = ReferenceWeights(folder, run("gpipe"));
  ASSERT_FALSE(want.empty());
  for (const auto& [schedule, processes] :
       std::vector<std::pair<std::string, int>>{{"dualpipe", 1},
                                                {"dualpipe", 2},
                                                {"dualpipe", 4},
                                                {"{dualpipe: {}, activations: recompute}", 1},
                                                {"{dualpipe: {}, activations: offload}", 2},
                                                {"dualpipe_v", 1}}) {
    SCOPED_TRACE(absl::StrCat(schedule, " on ", processes));
    const CommandResult r = Train(folder, run(schedule), processes);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(ReadTensors(folder / "out/checkpoint"), want);
    EXPECT_EQ(Losses(folder / "out"), Losses(folder / "plain"));
  }
}

TEST_F(Training, OtherCutOfTheChain_GivesTheSameWeights) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  std::map<std::string, std::string> first;
  for (const char* stages : {"[1, 5]", "[2, 2, 2]", "[6]"}) {
    const std::string file = folder.Write("run.yaml", GptRun(folder, "1f1b", 3, stages));
    const CommandResult r =
        Command::Run({"weft", "train", file, "--overwrite", "--out", folder / "out"}, 120);
    ASSERT_EQ(r.code, 0) << r.err;
    std::map<std::string, std::string> values;  // without the stage's number
    for (auto& [name, bytes] : ReadTensors(folder / "out/checkpoint"))
      values[name.substr(name.find('.') + 1)] = bytes;
    if (first.empty()) first = values;
    EXPECT_EQ(values, first) << stages;
  }
}

// A rank keeps of its forwards what the schedule says of activations.
TEST_F(Training, ActivationBytes_RetainedRecomputedOffloaded) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  std::map<std::string, Json> peaks;
  for (const char* activations : {"retain", "recompute", "offload"}) {
    const std::string schedule = absl::StrCat("{gpipe: {}, activations: ", activations, "}");
    const std::string file = folder.Write("run.yaml", GptRun(folder, schedule, 2, "[2, 1, 1, 2]"));
    const CommandResult r = Command::Run(
        {"weft", "train", file, "--processes", "2", "--overwrite", "--out", folder / "out"}, 120);
    ASSERT_EQ(r.code, 0) << r.err;
    peaks[activations] = Json::parse(ReadWholeFile(folder / "out/summary.json"))["peak_bytes"];
  }
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const auto peak = [&](const char* activations, const char* memory_class) {
      return peaks[activations][rank][memory_class].get<int64_t>();
    };
    EXPECT_EQ(peak("retain", "host"), 0);
    EXPECT_EQ(peak("recompute", "host"), 0);
    EXPECT_GT(peak("offload", "host"), 0);
    // The first rank waits for nobody's activations, so its four micro-batches are alive at once; recomputed,
    // one of them at a time has more than the stage's input. On another rank a backward may be ready before
    // the last forward is, and fewer are.
    if (rank > 0) continue;
    EXPECT_LT(2 * peak("recompute", "activations"), peak("retain", "activations"));
    EXPECT_LT(2 * peak("offload", "activations"), peak("retain", "activations"));
    EXPECT_GT(2 * peak("offload", "host"), peak("retain", "activations"));
  }
}

// Bytes of each stage's weights in a checkpoint folder.
std::vector<int64_t> StageBytes(const std::string& folder) {
  std::map<std::string, int64_t> stages;
  for (const auto& [name, bytes] : ReadWeights(folder))
    stages[name.substr(0, name.find('.'))] += static_cast<int64_t>(bytes.size());
  std::vector<int64_t> bytes;
  for (const auto& [stage, sum] : stages) bytes.push_back(sum);
  return bytes;
}

// Each of four ranks holds a quarter of every stage and of its state, and one stage at a time put together.
TEST_F(Training, WeightsByWidth_TakeAQuarterOnEachOfFourRanks) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  const auto peaks = [&](const std::string& schedule) {
    std::string run = GptRun(folder, schedule, 3, "[1, 1, 1, 1, 1, 1]");
    run.replace(run.find("width: 32"), 9, "width: 64");  // each stage cuts into equal slices
    const CommandResult r = Command::Run({"weft", "train", folder.Write("run.yaml", run), "--processes", "2",
                                          "--overwrite", "--out", folder / "out"},
                                         120);
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(ReadWholeFile(folder / "out/summary.json"))["peak_bytes"];
  };
  const Json whole = peaks("ddp"), sliced = peaks("{fsdp: {shard: width}}");
  const std::vector<int64_t> stages = StageBytes(folder / "out/checkpoint");
  ASSERT_EQ(stages.size(), 6u);
  const int64_t all = std::accumulate(stages.begin(), stages.end(), int64_t{0});
  const int64_t largest = *std::max_element(stages.begin(), stages.end());
  ASSERT_EQ(sliced.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const auto peak = [&](const Json& run, const char* memory_class) {
      return run[rank][memory_class].get<int64_t>();
    };
    EXPECT_GE(peak(whole, "weights"), all);
    EXPECT_LE(peak(whole, "weights"), all + 64);  // an empty tensor, while a stage is made
    EXPECT_EQ(peak(whole, "optimizer"), 2 * all);
    EXPECT_EQ(peak(sliced, "optimizer"), 2 * all / 4);
    // An update writes another version where a peer still reads the old one.
    EXPECT_GE(peak(sliced, "weights"), all / 4);
    EXPECT_LE(peak(sliced, "weights"), 2 * all / 4);
    EXPECT_LE(peak(sliced, "buffers"), peak(whole, "buffers") + largest);
  }
}

// Stages of a few cache lines, of which slices are made, on eight ranks: most hold nothing of them.
TEST_F(Training, WeightsByWidth_MoreRanksThanSlices_CostsNoBit) {
  TestFolder folder;
  WriteIdx(folder, 128, 2);
  const std::string file = folder.Write(
      "run.yaml",
      absl::StrCat("name: tiny\nmodel: {mlp: {layers: 3, width: 4, inputs: 4, classes: 10}}\n",
                   "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx",
                   "}, order: sequential}\n",
                   "train: {steps: 3, batch: 16, microbatches: 8, seed: 2, optimizer: {adamw: {lr: 0.1}}}\n",
                   "stages: 3\nschedule: {fsdp: {shard: width}}\n"));
  ASSERT_EQ(Command::Run({"weft", "train", file, "--reference", "--out", folder / "plain"}, 60).code, 0);
  const CommandResult r =
      Command::Run({"weft", "train", file, "--processes", "4", "--overwrite", "--out", folder / "out"}, 60);
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* checkpoint : {"checkpoint", "checkpoint-0"}) {
    for (const char* stage : {"stage00.safetensors", "stage01.safetensors", "stage02.safetensors"}) {
      const std::string path = absl::StrCat(checkpoint, "/", stage);
      const std::string want = ReadWholeFile(folder / ("plain/" + path));
      EXPECT_FALSE(want.empty()) << path;
      EXPECT_EQ(ReadWholeFile(folder / ("out/" + path)), want) << path;
    }
  }
  EXPECT_EQ(Losses(folder / "out"), Losses(folder / "plain"));
}

// The first rank has three of six layers: under this budget it has room for what two of four forwards leave,
// though gpipe would run all four before the first backward.
TEST_F(Training, MemoryBudget_IsKeptAndCostsNoBit) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  const auto run = [&](const std::string& memory) {
    return folder.Write("run.yaml", GptRun(folder, "gpipe" + memory, 4, "[3, 1, 1, 1]"));
  };
  const CommandResult reference =
      Command::Run({"weft", "train", run(""), "--reference", "--out", folder / "plain"});
  ASSERT_EQ(reference.code, 0) << reference.err;
  constexpr int64_t kBudget = 1650 * 1024;
  const CommandResult r = Command::Run(
      {"weft", "train", run("\nmemory: 1650KiB"), "--processes", "2", "--overwrite", "--out", folder / "out"},
      120);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(ReadTensors(folder / "out/checkpoint"), ReadTensors(folder / "plain/checkpoint"));
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
  EXPECT_EQ(summary["run"]["memory"], kBudget);
  EXPECT_EQ(summary["peak_activations"][0], 2);
  for (const Json& peak : summary["peak_activations"]) EXPECT_LE(peak.get<int>(), 2);
  EXPECT_GT(summary["idle_seconds"][0]["memory"].get<double>(), 0);
  for (const Json& rank : summary["peak_bytes"]) {
    int64_t sum = 0;
    for (const auto& [memory_class, bytes] : rank.items()) {
      if (memory_class != "host") sum += bytes.get<int64_t>();
    }
    EXPECT_LE(sum, kBudget);
  }
}

TEST_F(Training, MemoryBudgetTooSmall_IsRefusedBeforeAnythingStarts) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  const auto refusal = [&](const std::string& memory) {
    const std::string file = folder.Write("run.yaml", GptRun(folder, "gpipe\nmemory: " + memory, 4));
    const CommandResult r = Command::Run({"weft", "train", file, "--overwrite", "--out", folder / "out"});
    EXPECT_EQ(r.code, 78);
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    return r.err;
  };
  EXPECT_THAT(refusal("100KB"), HasSubstr("run.yaml:7: memory: rank 0 needs "));
  const std::string message = refusal("1MiB");
  EXPECT_THAT(message, HasSubstr(" for activations, and micro-batch 0 alone leaves"));
  EXPECT_THAT(message, HasSubstr("by stage 3"));
}

// Every finished run must say this about itself.
TEST_F(Training, Summary_AddsUp) {
  TestFolder folder;
  folder.Write("text.txt", Text(20000));
  const std::string file = folder.Write("run.yaml", GptRun(folder, "1f1b", 6));
  const CommandResult r =
      Command::Run({"weft", "train", file, "--processes", "2", "--overwrite", "--out", folder / "out"}, 120);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
  EXPECT_EQ(summary["steps"], 6);
  EXPECT_EQ(summary["ranks"], 4);
  EXPECT_EQ(summary["processes"], 2);
  // Three boundaries, eight samples a step, 32 tokens of 32 floats, both ways.
  const double boundary = 6.0 * 3 * 8 * 32 * 32 * 4;
  EXPECT_EQ(summary["bytes_sent"]["activation"], boundary);
  EXPECT_EQ(summary["bytes_sent"]["input_gradient"], boundary);
  EXPECT_EQ(summary["bytes_sent"]["gradient"], 0);
  ASSERT_EQ(summary["idle_seconds"].size(), 4u);
  for (const Json& rank : summary["peak_bytes"]) {
    for (const char* c : {"weights", "gradients", "optimizer", "activations"}) EXPECT_GT(rank[c], 0) << c;
    // Two moments of AdamW; the weights also count what the allocator rounds up.
    EXPECT_GT(rank["optimizer"].get<double>(), 1.9 * rank["weights"].get<double>());
  }
  // 1f1b holds S - s micro-batches on stage s.
  EXPECT_GT(summary["peak_bytes"][0]["activations"], summary["peak_bytes"][2]["activations"]);
  const Json trace = Json::parse(ReadWholeFile(folder / "out/trace.json"));
  EXPECT_FALSE((trace.is_array() ? trace : trace["traceEvents"]).empty());
  EXPECT_THAT(ReadWholeFile(folder / "out/timeline.svg"), HasSubstr("<svg"));
}

}  // namespace
}  // namespace weft::training_test
