// Shuffled and augmented samples, with the real programs: the same bits under every schedule and across a
// stop and a resumption in another epoch, and others than those of the samples as they are.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/trained_run.h"

namespace weft::shuffled_test {
namespace {

class Shuffled : public ::testing::Test {
 protected:
  Shuffled() { WriteIdx(folder_, /*count=*/50, /*side=*/6); }

  // 8 steps of 16 samples of 50: epochs end within micro-batches.
  TrainedRun Train(const std::string& more, const std::string& schedule,
                   const std::vector<std::string>& flags) {
    return TrainSmallRun(
        folder_,
        {{"model", "{mlp: {layers: 4, width: 16, inputs: 36, classes: 10}}"},
         {"data", absl::StrCat("{idx: {images: images.idx, labels: labels.idx}", more, "}")},
         {"train", "{steps: 8, batch: 16, microbatches: 4, seed: 4, optimizer: {adamw: {lr: 1.0e-2}}}"},
         {"schedule", schedule}},
        flags);
  }

  TestFolder folder_;
};

constexpr char kAll[] = ", order: shuffled, augment: {crop: 1, flip: true}";

TEST_F(Shuffled, SchedulesOnTwoProcesses_HaveTheReferencesBits) {
  const TrainedRun reference = Train(kAll, "1f1b", {"--reference"});
  ASSERT_EQ(reference.result.code, 0) << reference.result.err;
  for (const char* schedule : {"1f1b", "ddp", "{fsdp: {shard: width}}"}) {
    const TrainedRun run = Train(kAll, schedule, {"--processes", "2"});
    ASSERT_EQ(run.result.code, 0) << run.result.err;
    EXPECT_EQ(run.losses, reference.losses) << schedule;
    EXPECT_TRUE(run.weights == reference.weights) << schedule;
  }
  for (const char* part : {"", ", order: shuffled", ", augment: {crop: 1}", ", augment: {flip: true}"}) {
    const TrainedRun other = Train(part, "1f1b", {"--reference"});
    EXPECT_FALSE(other.weights == reference.weights) << part << " must show";
  }
}

TEST_F(Shuffled, StoppedAndResumedUnderAnotherSchedule_HasTheReferencesBits) {
  const TrainedRun reference = Train(kAll, "1f1b", {"--reference"});
  const TrainedRun stopped = Train(kAll, "ddp", {"--processes", "2", "--until", "4"});
  ASSERT_EQ(stopped.result.code, 0) << stopped.result.err;
  const std::string kept = folder_ / "kept";
  std::filesystem::copy(folder_ / "out/checkpoint", kept, std::filesystem::copy_options::recursive);
  const TrainedRun resumed = Train(kAll, "1f1b", {"--processes", "2", "--resume", kept});
  ASSERT_EQ(resumed.result.code, 0) << resumed.result.err;
  EXPECT_TRUE(resumed.weights == reference.weights);
}

}  // namespace
}  // namespace weft::shuffled_test
