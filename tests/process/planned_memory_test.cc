// The published patterns whose memory is known by hand, trained: what each rank counts is what the pattern
// says. And budgets of bytes: what they leave room for.
//
// The two chains are those of Beaumont, Eyraud-Dubois and Shilova (hal-02968802) in which windows of two
// micro-batches need less memory than windows of one. The planner gets their times and bytes; the trained
// model has layers of equal size. A pattern fixes the order of jobs, so its copies do not depend on how long
// jobs take.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/run_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "tests/process/command.h"
#include "tests/process/measured_peaks.h"
#include "tests/process/run_files.h"

namespace weft::planned_memory_test {
namespace {

using Json = nlohmann::json;

struct Published {
  const char* name;
  const char* profile;
  int layers, ranks;
  const char* memory;       // bytes of a rank, in the profile's numbers
  std::vector<int> stages;  // rank of each
  std::vector<int> copies;  // of each stage's activations; a rank's at a time are the sum over its stages
};

const Published kFourLayers = {"E5",
                               R"({"layers": [{"forward": 3, "backward": 3, "activation_bytes": 1},
                   {"forward": 2, "backward": 2, "activation_bytes": 2},
                   {"forward": 2, "backward": 2, "activation_bytes": 2},
                   {"forward": 2, "backward": 2, "activation_bytes": 4}]})",
                               4,
                               4,
                               "4",
                               {0, 1, 2, 3},
                               {4, 2, 2, 1}};
const Published kThreeLayers = {"E6",
                                R"({"layers": [{"forward": 1, "backward": 1, "activation_bytes": 2},
                   {"forward": 2, "backward": 2, "activation_bytes": 3},
                   {"forward": 1, "backward": 1, "activation_bytes": 2}]})",
                                3,
                                2,
                                "6",
                                {0, 1, 0},
                                {2, 2, 1}};

std::string RunText(const TestFolder& folder, int layers, int steps, int samples, int microbatches,
                    const std::string& more) {
  return absl::StrCat("name: published\nmodel: {mlp: {layers: ", layers,
                      ", width: 64, inputs: 64, classes: 10}}\ndata: {idx: {images: ", folder / "images.idx",
                      ", labels: ", folder / "labels.idx", "}}\ntrain: {steps: ", steps,
                      ", batch: ", samples * microbatches, ", microbatches: ", microbatches,
                      ", seed: 2, optimizer: {sgd: {lr: 0.1}}}\n", more);
}

// Trains under the planned pattern, and compares copies and bytes of each rank.
void ExpectCopies(const Published& chain, int processes) {
  SCOPED_TRACE(absl::StrCat(chain.name, " on ", processes, " processes"));
  TestFolder folder;
  WriteIdx(folder, 512, 8);
  const CommandResult planned = Command::Run({"weft", "plan", folder.Write("profile.json", chain.profile),
                                              "--workers", absl::StrCat(chain.ranks), "--memory",
                                              chain.memory, "--schedule", "periodic,k=2", "-o", "yaml"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const std::string plan = folder.Write("plan.yaml", planned.out);
  const std::string file =
      folder.Write("run.yaml", RunText(folder, chain.layers, 3, 8, 16, "schedule: {file: plan.yaml}\n"));
  const auto run = ReadRunFile(file);
  ASSERT_TRUE(run.ok()) << run.status();
  const CommandResult r = Command::Run(
      {"weft", "train", file, "--processes", absl::StrCat(processes), "--out", folder / "out"}, 120);
  ASSERT_EQ(r.code, 0) << r.err;
  ComparedByClass compared{};
  const RunSchedule schedule = *ScheduleOf(*run);
  ExpectPredictedPeaks(folder / "out", *run, schedule, &compared);

  std::vector<int> copies(chain.ranks, 0);
  std::vector<int64_t> least(chain.ranks, 0), most(chain.ranks, 0);
  const std::vector<StageMemory> stages = CountStages(*run);
  for (int s = 0; s < chain.layers; ++s) {
    const Rank rank = chain.stages[s];
    copies[rank] += chain.copies[s];
    // A stage's output stays until its reader's backward, which comes before its own.
    least[rank] = std::max(least[rank], chain.copies[s] * (stages[s].activation_bytes - stages[s].output));
    most[rank] = std::max(most[rank], stages[s].activation_bytes);
  }
  for (int rank = 0; rank < chain.ranks; ++rank) most[rank] *= copies[rank];
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
  EXPECT_EQ(summary["peak_activations"], Json(copies));
  for (int rank = 0; rank < chain.ranks; ++rank) {
    const int64_t measured = summary["peak_bytes"][rank]["activations"];
    std::cout << chain.name << ", rank " << rank << ": " << copies[rank] << " copies, " << measured
              << " bytes of activations; " << least[rank] << " without outputs, " << most[rank] << " with\n";
    EXPECT_GE(measured, least[rank]) << "of rank " << rank;
    EXPECT_LE(measured, most[rank]) << "of rank " << rank;
  }
}

TEST(PlannedMemory, FourLayersInWindowsOfTwo_KeepFourTwoTwoAndOneCopies) {
  ExpectCopies(kFourLayers, 1);
  ExpectCopies(kFourLayers, 4);
}

TEST(PlannedMemory, ThreeLayersInWindowsOfTwo_KeepThreeAndTwoCopies) {
  ExpectCopies(kThreeLayers, 1);
  ExpectCopies(kThreeLayers, 2);
}

// A budget of bytes that leaves the ranks room for so many copies holds them, in whatever order they run. The
// chain itself has no such budget: a rank whose stage keeps four times the bytes needs more than that of
// buffers, too, which the published memory leaves out. So the cut is another.
TEST(PlannedMemory, ByteBudgetWithRoomForFourTwoTwoAndOneCopies_IsKept) {
  TestFolder folder;
  WriteIdx(folder, 512, 8);
  const std::vector<int> wanted = {4, 2, 2, 1};
  const std::string text = RunText(folder, 19, 40, 256, 1, "stages: [3, 5, 5, 6]\nschedule: pipedream\n");
  const auto run = ReadRunFile(folder.Write("run.yaml", text));
  ASSERT_TRUE(run.ok()) << run.status();
  const RunMemory counted = CountRun(*run, *ScheduleOf(*run));
  int64_t budget = 0;
  for (Rank rank = 0; rank < 4; ++rank) {
    budget = std::max(budget, counted.ranks[rank].beside_activations() +
                                  wanted[rank] * counted.forwards.activation_bytes[rank]);
  }
  for (Rank rank = 0; rank < 4; ++rank) {
    const int64_t room = budget - counted.ranks[rank].beside_activations();
    ASSERT_EQ(room / counted.forwards.activation_bytes[rank], wanted[rank]) << "of rank " << rank;
  }
  const std::string file = folder.Write("run.yaml", absl::StrCat(text, "memory: ", budget, "\n"));
  const CommandResult r =
      Command::Run({"weft", "train", file, "--processes", "4", "--out", folder / "out"}, 120);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto within = ReadRunFile(file);
  ASSERT_TRUE(within.ok()) << within.status();
  ComparedByClass compared{};
  ExpectPredictedPeaks(folder / "out", *within, *ScheduleOf(*within), &compared);
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
  std::cout << "budget " << budget << ": copies " << summary["peak_activations"] << ", bytes "
            << summary["most_bytes"] << "\n";
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_LE(summary["peak_activations"][rank], wanted[rank]) << "of rank " << rank;
    EXPECT_LE(summary["most_bytes"][rank], budget) << "of rank " << rank;
  }
}

// Ranks that deal micro-batches hand out the gradient of each. Within the least budget there is room for
// those of one micro-batch, so a rank waits until they have been taken: by a rank of its own process, or of
// another.
TEST(PlannedMemory, DealtMicrobatchesWithRoomForOne_WaitUntilTheirGradientsAreTaken) {
  TestFolder folder;
  WriteIdx(folder, 512, 8);
  const std::string text = RunText(folder, 4, 3, 8, 16, "stages: 2\nschedule: {ddp: {ranks: 2}}\n");
  const auto run = ReadRunFile(folder.Write("free.yaml", text));
  ASSERT_TRUE(run.ok()) << run.status();
  const RunMemory counted = CountRun(*run, *ScheduleOf(*run));
  int64_t budget = 0, least = INT64_MAX;
  for (const RankMemory& rank : counted.ranks) {
    budget = std::max(budget, rank.beside_forwards());
    least = std::min(least, rank.beside_activations());
  }
  for (int s = 0; s < run->stages(); ++s) budget += counted.forwards.RoomOf(s);
  ASSERT_GT(least, budget) << "the gradients of all would not fit";
  const std::string file = folder.Write("run.yaml", absl::StrCat(text, "memory: ", budget, "\n"));
  const auto weights_of = [&](const std::string& of_run, const std::string& processes, Json* summary) {
    const std::string out = folder / absl::StrCat("out", processes);
    const CommandResult r =
        Command::Run({"weft", "train", of_run, "--processes", processes, "--out", out, "--overwrite"}, 120);
    EXPECT_EQ(r.code, 0) << r.err;
    *summary = Json::parse(ReadWholeFile(out + "/summary.json"));
    return ReadWholeFile(out + "/checkpoint/stage00.safetensors") +
           ReadWholeFile(out + "/checkpoint/stage01.safetensors");
  };
  for (const char* processes : {"1", "2"}) {
    SCOPED_TRACE(processes);
    Json summary;
    const std::string free = weights_of(folder / "free.yaml", processes, &summary);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(weights_of(file, processes, &summary), free);
    double waited = 0;
    for (int r = 0; r < 2; ++r) {
      EXPECT_LE(summary["most_bytes"][r], budget) << "of rank " << r;
      waited += summary["idle_seconds"][r]["memory"].get<double>();
    }
    EXPECT_GT(waited, 0);
  }
}

// When a backward ends, its activations have gone, and the gradient that it hands out lies beside the pieces
// that it is made of. On many ranks no other part of the budget is as large. A run with measured buffers ends
// if a rank has more.
TEST(PlannedMemory, LeastBudgetOfManyRanks_HasRoomForTheGradientBesideItsPieces) {
  TestFolder folder;
  WriteIdx(folder, 512, 8);
  const std::string text = RunText(folder, 6, 2, 32, 8, "stages: 1\nschedule: {ddp: {ranks: 8}}\n");
  const CommandResult profiled = Command::Run(
      {"weft", "profile", folder.Write("free.yaml", text), "--steps", "2", "-o", folder / "profile.json"});
  ASSERT_EQ(profiled.code, 0) << profiled.err;
  const std::string measured = absl::StrCat(text, "buffers: profile.json\n");
  auto run = ReadRunFile(folder.Write("run.yaml", measured));
  ASSERT_TRUE(run.ok()) << run.status();
  const int64_t refused = CountRun(*run, *ScheduleOf(*run)).ranks[0].beside_forwards();
  int64_t below = refused, least = 4 * refused;
  while (least - below > 1) {
    run->memory = (below + least) / 2;
    (CheckedScheduleOf(*run).ok() ? least : below) = run->memory;
  }
  ASSERT_LT(least, 4 * refused);
  const std::string file = folder.Write("run.yaml", absl::StrCat(measured, "memory: ", least, "\n"));
  const CommandResult r =
      Command::Run({"weft", "train", file, "--processes", "2", "--out", folder / "out"}, 120);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));
  std::cout << "least " << least << ", bytes " << summary["most_bytes"] << "\n";
  for (Rank rank = 0; rank < 8; ++rank) EXPECT_LE(summary["most_bytes"][rank], least) << "of rank " << rank;
}

}  // namespace
}  // namespace weft::planned_memory_test
