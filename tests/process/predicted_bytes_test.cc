// Tests that the bytes of each rank and class are predicted: random run files are trained on two processes
// that share memory, or with a process for each rank where none do, and what the allocators counted is
// compared with the prediction from the run's jobs.
//
// A run's seed is printed with what it finds. WEFT_SEED=N makes that run alone, WEFT_SEEDS=N so many runs.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/run_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/measured_buffers.h"
#include "run/run_schedule.h"
#include "tests/process/command.h"
#include "tests/process/measured_peaks.h"
#include "tests/process/run_files.h"
#include "tests/process/standing_workers.h"

namespace weft::predicted_bytes_test {
namespace {

constexpr int kRuns = 12;

// Has processes of this machine share no memory, as those of different machines.
class SeparateMemory {
 public:
  SeparateMemory() { setenv("WEFT_IN_PLACE", "0", 1); }
  ~SeparateMemory() { unsetenv("WEFT_IN_PLACE"); }
};

// A run of any model, sizes, precision, optimizer, family and activation policy.
class RandomRun {
 public:
  RandomRun(const TestFolder& folder, unsigned seed) : folder_(folder), random_(seed) {}

  std::string Text() {
    const int samples = Number(1, 3), microbatches = 4 * Number(1, 2), stages = Number(2, 4);
    const bool clips = Number(0, 4) == 0;
    return absl::StrCat("name: random\n", Model(), "train: {steps: 3, batch: ", samples * microbatches,
                        ", microbatches: ", microbatches, ", seed: ", Number(1, 99), ", optimizer: {",
                        Pick({"sgd: {lr: 0.01}", "sgd: {lr: 0.01, momentum: 0.9}", "adamw: {lr: 0.001}"}),
                        "}", clips ? ", clip_norm: 1.0" : "", "}\nstages: ", stages,
                        "\nprecision: ", Pick({"float32", "float32", "bf16"}), "\nschedule: {",
                        Family(stages, microbatches),
                        ", activations: ", Pick({"retain", "retain", "recompute", "offload"}), "}\n");
  }

 private:
  int Number(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  std::string Pick(const std::vector<std::string>& choices) {
    return choices[Number(0, static_cast<int>(choices.size()) - 1)];
  }
  std::string Model() {
    const std::string text = absl::StrCat("data: {text: {path: ", folder_ / "text.txt", "}}\n");
    const std::string images = absl::StrCat("data: {idx: {images: ", folder_ / "images.idx",
                                            ", labels: ", folder_ / "labels.idx", "}}\n");
    const int width = 8 * Number(1, 6);
    switch (Number(0, 4)) {
      case 0:
        return absl::StrCat("model: {gpt: {layers: ", Number(2, 4), ", width: ", width,
                            ", heads: 2, context: ", Number(5, 30), ", dropout: ", Pick({"0", "0.1"}),
                            ", tied: ", Pick({"false", "false", "true"}), "}}\n", text);
      case 1:
        return absl::StrCat("model: {mlp: {layers: ", Number(4, 6), ", width: ", width,
                            ", inputs: 64, classes: 10, gelu: ", Pick({"fused", "apart"}), "}}\n", images);
      case 2:
        return absl::StrCat("model: {resnet18: {classes: 10, channels: 1, size: 8, width: ", Number(2, 9),
                            "}}\n", images);
      case 3:
        return absl::StrCat("model: {vit_b16: {layers: ", Number(2, 4), ", width: ", width,
                            ", heads: 2, patch: 4, classes: 10, channels: 1, size: 8}}\n", images);
      default:
        return absl::StrCat("model: {two_tower: {stem: ", Number(0, 1), ", layers: 2, width: ", width,
                            ", inputs: 64, classes: 10}}\n", images);
    }
  }
  std::string Family(int stages, int microbatches) {
    std::vector<std::string> families = {
        "gpipe: ",
        "1f1b: ",
        "zb_h1: ",
        "zb_h2: ",
        "fsdp: {shard: width}",
        "lpp: {groups: 2, ranks: 1}",
        "fslpp: {groups: 2, ranks: 1}",
        "depth_first: {ranks: 1}",
        "pipedream_2bw: ",
        "custom: {workers: 2, compute: \"(s + b) % W\", weights: \"s % W\"}",
        "custom: {workers: 2, compute: \"k == forward ? s % W : (s + 1) % W\", weights: \"s % W\"}",
        "custom: {workers: 2, compute: \"k == forward ? (s + 1) % W : s % W\", weights: \"s % W\"}",
        "custom: {workers: 2, compute: \"s % W\", split_backward: true}"};
    if (microbatches == 4) {
      for (const char* few : {"ddp: ", "fsdp: "}) families.emplace_back(few);
    }
    if (stages % 2 == 0) {
      for (const char* even : {"interleaved: {ranks: 2}", "breadth_first: {ranks: 2}",
                               "fslpp: {groups: 2, ranks: 2}", "zb_v: ", "v_min: ", "v_half: "})
        families.emplace_back(even);
    }
    if (stages == 4 && microbatches == 8) {
      for (const char* paired : {"dualpipe: ", "dualpipe_v: "}) families.emplace_back(paired);
    }
    return Pick(families);
  }

  const TestFolder& folder_;
  std::mt19937 random_;
};

std::vector<unsigned> Seeds() {
  if (const char* one = std::getenv("WEFT_SEED")) return {static_cast<unsigned>(std::atoi(one))};
  const char* const many = std::getenv("WEFT_SEEDS");
  std::vector<unsigned> seeds(many != nullptr ? std::max(1, std::atoi(many)) : kRuns);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = static_cast<unsigned>(i + 1);
  // Found by many: forwards that take more than any backward of their rank; and halves of backwards whose
  // activations were offloaded.
  if (many == nullptr) seeds.insert(seeds.end(), {242, 31});
  return seeds;
}

void WriteData(const TestFolder& folder) {
  folder.Write("text.txt", RandomLetters(20000));
  WriteIdx(folder, 256, 8);
}

void Print(const ComparedByClass& compared) {
  for (size_t c = 0; c < kComparedClasses.size(); ++c) {
    std::cout << kComparedClasses[c].name << ": of " << compared[c].ranks << " ranks, " << compared[c].equal
              << " measured the predicted most, " << compared[c].certain << " had no other choice\n";
  }
}

// Returns the least budget with which the run is admitted; 0 for none.
int64_t LeastBudget(RunSpec run) {
  int64_t refused = 0, admitted = int64_t{1} << 34;
  const auto fits = [&](int64_t bytes) {
    run.memory = bytes;
    return CheckedScheduleOf(run).ok();
  };
  if (!fits(admitted)) return 0;
  while (admitted - refused > 1) {
    const int64_t middle = refused + (admitted - refused) / 2;
    (fits(middle) ? admitted : refused) = middle;
  }
  return admitted;
}

CommandResult Train(const std::string& file, int processes, const std::string& out) {
  return Command::Run(
      {"weft", "train", file, "--processes", absl::StrCat(processes), "--overwrite", "--out", out}, 120);
}

// The fixture of tests that train on processes which stay: some that share memory, and some that share none.
class PredictedBytes : public ::testing::Test {
 protected:
  static void TearDownTestSuite() {
    sharing_.reset();
    separate_.reset();
  }
  static const StandingWorkers& Sharing() {
    if (sharing_ == nullptr) sharing_ = std::make_unique<StandingWorkers>(2);
    return *sharing_;
  }
  static const StandingWorkers& Separate() {
    const SeparateMemory separate;
    if (separate_ == nullptr) separate_ = std::make_unique<StandingWorkers>(8);
    return *separate_;
  }
  static CommandResult TrainOn(const StandingWorkers& workers, const std::string& file, int processes,
                               const std::string& out) {
    return workers.Train(file, {"--processes", absl::StrCat(processes)}, out);
  }

  static void ExpectRandomRunsMeasureWhatIsPredicted(bool separate);

 private:
  inline static std::unique_ptr<StandingWorkers> sharing_, separate_;
};

// Trains random runs, and compares what each rank measured with its prediction: on at most two processes, or,
// with `separate` memory, on one for each rank.
void PredictedBytes::ExpectRandomRunsMeasureWhatIsPredicted(bool separate) {
  TestFolder folder;
  WriteData(folder);
  ComparedByClass compared{};
  int trained = 0;
  const std::vector<unsigned> seeds = Seeds();
  for (const unsigned seed : seeds) {
    const std::string text = RandomRun(folder, seed).Text() + (separate ? "separate_memory: true\n" : "");
    SCOPED_TRACE(absl::StrCat("WEFT_SEED=", seed, "\n", text));
    const std::string file = folder.Write("run.yaml", text);
    const auto run = ReadRunFile(file);
    if (!run.ok()) continue;  // the family does not take these sizes
    ++trained;
    const RunSchedule schedule = *ScheduleOf(*run);
    const int ranks = schedule.scheme.ranks;
    // Runs that share memory train in new processes, which take what only a first run takes.
    const CommandResult r = separate ? TrainOn(Separate(), file, ranks, folder / "out")
                                     : Train(file, std::min(ranks, 2), folder / "out");
    ASSERT_EQ(r.code, 0) << r.err;
    std::optional<MemoryOfRank> own;
    if (separate) {
      own.emplace(ranks);
      std::iota(own->begin(), own->end(), 0);
    }
    ExpectPredictedPeaks(folder / "out", *run, schedule, &compared, own);
  }
  Print(compared);
  EXPECT_GE(2 * trained, static_cast<int>(seeds.size())) << "most of the random runs can be trained";
}

TEST_F(PredictedBytes, RandomRunFiles_MeasureWhatIsPredicted) {
  ExpectRandomRunsMeasureWhatIsPredicted(/*separate=*/false);
}

TEST_F(PredictedBytes, RandomRunFilesWithoutSharedMemory_MeasureWhatIsPredicted) {
  ExpectRandomRunsMeasureWhatIsPredicted(/*separate=*/true);
}

// The least budget that is admitted holds, copies of other ranks' tensors included.
TEST_F(PredictedBytes, RandomRunFilesWithoutSharedMemory_KeepTheLeastBudget) {
  TestFolder folder;
  WriteData(folder);
  int kept = 0;
  for (const unsigned seed : Seeds()) {
    if (seed % 2 == 0 && std::getenv("WEFT_SEED") == nullptr) continue;
    const std::string text = RandomRun(folder, seed).Text() + "separate_memory: true\n";
    auto run = ReadRunFile(folder.Write("run.yaml", text));
    if (!run.ok()) continue;
    run->memory = LeastBudget(*run);
    if (run->memory == 0) continue;  // its backwards are on other ranks than its forwards
    SCOPED_TRACE(absl::StrCat("WEFT_SEED=", seed, "\n", text, "memory: ", run->memory));
    const std::string file = folder.Write("run.yaml", absl::StrCat(text, "memory: ", run->memory, "\n"));
    const int ranks = ScheduleOf(*run)->scheme.ranks;
    const CommandResult r = TrainOn(Separate(), file, ranks, folder / "out");
    ASSERT_EQ(r.code, 0) << r.err;
    const auto summary = nlohmann::json::parse(ReadWholeFile(folder / "out/summary.json"));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(summary["most_bytes"][rank], run->memory) << rank;
    ++kept;
  }
  if (std::getenv("WEFT_SEED") == nullptr) {
    EXPECT_GE(kept, 3);
  }
}

// Measures the run's layers, and returns the run file's text with what their jobs took.
std::string WithProfile(const TestFolder& folder, const std::string& text) {
  const CommandResult r = Command::Run(
      {"weft", "profile", folder.Write("run.yaml", text), "--steps", "2", "-o", folder / "profile.json"},
      120);
  EXPECT_EQ(r.code, 0) << r.err;
  return text + "buffers: profile.json\n";
}

// The bytes that jobs of layers took alone bound those that jobs of stages take: no class exceeds its
// prediction, and the least budget that is admitted holds.
TEST_F(PredictedBytes, RandomRunFilesWithProfile_MeasureAtMostWhatIsPredicted) {
  TestFolder folder;
  WriteData(folder);
  ComparedByClass compared{};
  int64_t least_by_formulas = 0, least_by_profile = 0;
  int trained = 0;
  const std::vector<unsigned> seeds = Seeds();
  for (const unsigned seed : seeds) {
    const std::string plain = RandomRun(folder, seed).Text();
    SCOPED_TRACE(absl::StrCat("WEFT_SEED=", seed, "\n", plain));
    const auto unmeasured = ReadRunFile(folder.Write("run.yaml", plain));
    if (!unmeasured.ok()) continue;  // the family does not take these sizes
    ++trained;
    const std::string text = WithProfile(folder, plain);
    const auto run = ReadRunFile(folder.Write("run.yaml", text));
    ASSERT_TRUE(run.ok()) << run.status();
    const RunSchedule schedule = *ScheduleOf(*run);
    const int ranks = schedule.scheme.ranks, processes = std::min(ranks, 2);
    CommandResult r = TrainOn(Sharing(), folder / "run.yaml", processes, folder / "out");
    ASSERT_EQ(r.code, 0) << r.err;
    ExpectPredictedPeaks(folder / "out", *run, schedule, &compared);
    const int64_t least = LeastBudget(*run);
    if (least == 0) continue;  // its backwards are on other ranks than its forwards
    const int64_t by_formulas = LeastBudget(*unmeasured);
    least_by_formulas += by_formulas;
    least_by_profile += least;
    r = TrainOn(Sharing(), folder.Write("run.yaml", absl::StrCat(text, "memory: ", least, "\n")), processes,
                folder / "out");
    ASSERT_EQ(r.code, 0) << r.err;
    const auto summary = nlohmann::json::parse(ReadWholeFile(folder / "out/summary.json"));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(summary["most_bytes"][rank], least) << rank;
    std::cout << "seed " << seed << ": least " << least << " of " << by_formulas << ", most "
              << summary["most_bytes"] << "\n";
  }
  Print(compared);
  std::cout << "least budgets: " << least_by_profile << " bytes with profiles, " << least_by_formulas
            << " without\n";
  EXPECT_LE(least_by_profile, least_by_formulas);
  if (std::getenv("WEFT_SEED") == nullptr) {
    EXPECT_GE(2 * trained, static_cast<int>(seeds.size())) << "most of the random runs can be trained";
    EXPECT_GT(least_by_profile, 0) << "of some run there is a least budget";
  }
}

constexpr char kTwoStages[] =
    "name: two\nmodel: {mlp: {layers: 4, width: 256, inputs: 64, classes: 10}}\n"
    "train: {steps: 3, batch: 64, microbatches: 4, seed: 2, optimizer: {sgd: {lr: 0.1}}}\n"
    "stages: 2\nschedule: 1f1b\nrestarts: 2\n";

// A copy that a budget does not count ends the run, with the tensor, its rank, class and bytes, before it is
// held.
TEST_F(PredictedBytes, CopyThatTheBudgetDoesNotCount_IsRefusedByRankStageClassAndBytes) {
  const SeparateMemory separate;
  TestFolder folder;
  WriteData(folder);
  const std::string data = absl::StrCat("data: {idx: {images: ", folder / "images.idx",
                                        ", labels: ", folder / "labels.idx", "}}\n");
  const auto train = [&](const std::string& more) {
    return Train(folder.Write("run.yaml", absl::StrCat(kTwoStages, data, more)), 2, folder / "out");
  };
  const CommandResult uncounted = train("memory: 64MiB\n");
  EXPECT_EQ(uncounted.code, 1) << uncounted.err;
  EXPECT_THAT(uncounted.err, testing::Not(testing::HasSubstr("began again"))) << "it would come again";
  EXPECT_THAT(uncounted.err,
              testing::HasSubstr("activation of step 0, stage 0, micro-batch 0, from rank 0 for rank 1"));
  EXPECT_THAT(uncounted.err, testing::HasSubstr("a copy of 16384 bytes (class received) is not in the memory "
                                                "budget of 67108864 bytes"));
  EXPECT_EQ(train("memory: 64MiB\nseparate_memory: true\n").code, 0);
}

// Figures that are too small let a run begin that does not fit. It ends when a rank exceeds its budget.
TEST_F(PredictedBytes, JobsThatTakeMoreThanMeasured_EndTheRun) {
  TestFolder folder;
  WriteData(folder);
  const std::string text = absl::StrCat(
      "name: more\nmodel: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}\ndata: {text: {path: ",
      folder / "text.txt", "}}\ntrain: {steps: 3, batch: 16, microbatches: 4}\nstages: 2\nschedule: 1f1b\n",
      "buffers: ", ToJson(MeasuredBuffers{4, 0, std::vector<LayerBuffers>(4)}).dump(), "\n");
  const auto run = ReadRunFile(folder.Write("run.yaml", text));
  ASSERT_TRUE(run.ok()) << run.status();
  const std::string file = folder.Write("run.yaml", absl::StrCat(text, "memory: ", LeastBudget(*run), "\n"));
  const CommandResult r = Train(file, 2, folder / "out");
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_THAT(r.err, testing::HasSubstr("more than the memory budget of"));
  EXPECT_THAT(r.err, testing::HasSubstr("measured `buffers`"));
}

// A budget that is enough in shared memory may be too small where copies come on top.
TEST_F(PredictedBytes, CopiesThatDoNotFit_AreRefusedByRankStageAndBytes) {
  TestFolder folder;
  WriteData(folder);
  const std::string data = absl::StrCat("data: {idx: {images: ", folder / "images.idx",
                                        ", labels: ", folder / "labels.idx", "}}\n");
  auto run = ReadRunFile(folder.Write("run.yaml", absl::StrCat(kTwoStages, data)));
  ASSERT_TRUE(run.ok()) << run.status();
  const int64_t shared = LeastBudget(*run);
  run->separate_memory = true;
  // An activation one way and its gradient the other, of 16 samples.
  EXPECT_EQ(LeastBudget(*run) - shared, 16 * 256 * 4);
  run->memory = shared;
  EXPECT_THAT(std::string(CheckedScheduleOf(*run).status().message()),
              testing::HasSubstr("16.0 KiB received from other ranks"));
}

// Within the least budget, the rank that needs most has one micro-batch at a time, and all of its budget.
TEST_F(PredictedBytes, LeastBudget_IsThePredictedPeak) {
  TestFolder folder;
  WriteData(folder);
  const std::string text = absl::StrCat(kTwoStages, "data: {idx: {images: ", folder / "images.idx",
                                        ", labels: ", folder / "labels.idx", "}}\n");
  for (const char* memory : {"false", "true"}) {
    const std::string separate = absl::StrCat(text, "separate_memory: ", memory, "\n");
    const auto run = ReadRunFile(folder.Write("run.yaml", separate));
    ASSERT_TRUE(run.ok()) << run.status();
    const int64_t least = LeastBudget(*run);
    const std::string file = folder.Write("run.yaml", absl::StrCat(separate, "memory: ", least, "\n"));
    const CommandResult r = Command::Run({"weft", "compare", file, "--schedules", "1f1b", "-o", "json"});
    ASSERT_EQ(r.code, 0) << r.err;
    const auto compared = nlohmann::json::parse(r.out);
    ASSERT_EQ(compared["schedules"].size(), 1u) << r.out;
    EXPECT_EQ(compared["schedules"][0]["peak_bytes"], least) << "separate_memory: " << memory;
  }
}

// The sum of a step may still be there, for other holders, while that of the next step is made.
TEST_F(PredictedBytes, SumsThatOtherHoldersTake_AreInTheCountOfEachRank) {
  TestFolder folder;
  WriteIdx(folder, 256, 8);
  const std::string file = folder.Write(
      "run.yaml",
      absl::StrCat("name: sums\nmodel: {mlp: {layers: 5, width: 128, inputs: 64, classes: 10}}\n",
                   "data: {idx: {images: ", folder / "images.idx", ", labels: ", folder / "labels.idx",
                   "}}\n",
                   "train: {steps: 60, batch: 16, microbatches: 8, seed: 2, optimizer: {sgd: {lr: 0.1}}}\n",
                   "stages: 4\nschedule: {custom: {workers: 4, compute: \"b % W\"}}\n"));
  const auto run = ReadRunFile(file);
  ASSERT_TRUE(run.ok()) << run.status();
  const CommandResult r =
      Command::Run({"weft", "train", file, "--processes", "2", "--out", folder / "out"}, 120);
  ASSERT_EQ(r.code, 0) << r.err;
  ExpectCountedBytes(nlohmann::json::parse(ReadWholeFile(folder / "out/summary.json")), *run,
                     *ScheduleOf(*run));
}

}  // namespace
}  // namespace weft::predicted_bytes_test
