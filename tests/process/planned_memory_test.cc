// The published patterns whose memory is known by hand, trained: what each rank counts is what the pattern
// says.
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
    budget = std::max(
        budget, counted.ranks[rank].beside_activations() + wanted[rank] * counted.activation_bytes[rank]);
  }
  for (Rank rank = 0; rank < 4; ++rank) {
    const int64_t room = budget - counted.ranks[rank].beside_activations();
    ASSERT_EQ(room / counted.activation_bytes[rank], wanted[rank]) << "of rank " << rank;
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

}  // namespace
}  // namespace weft::planned_memory_test
