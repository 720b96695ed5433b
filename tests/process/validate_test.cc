// Validation during a training, with the real programs: every schedule has the reference's figures, which are
// those of `weft eval` on a checkpoint of the step, also across a stop and a resumption; and the trained bits
// are those of a training without it.
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/trained_run.h"

namespace weft::validate_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

constexpr char kHeldOut[] = "{idx: {images: held-images.idx, labels: held-labels.idx}}";

class Validated : public ::testing::Test {
 protected:
  Validated() {
    WriteIdx(folder_, /*count=*/37, /*side=*/6);
    fs::rename(folder_ / "images.idx", folder_ / "held-images.idx");
    fs::rename(folder_ / "labels.idx", folder_ / "held-labels.idx");
    WriteIdx(folder_, /*count=*/50, /*side=*/6);
  }

  // 5 steps, and what is changed.
  std::map<std::string, std::string> Sections(const std::string& schedule, const std::string& validate,
                                              const std::string& checkpoint = "") const {
    std::map<std::string, std::string> sections = {
        {"model", "{mlp: {layers: 4, width: 16, inputs: 36, classes: 10, dropout: 0.1}}"},
        {"data", "{idx: {images: images.idx, labels: labels.idx}}"},
        {"train", "{steps: 5, batch: 16, microbatches: 4, seed: 4, optimizer: {adamw: {lr: 1.0e-2}}}"},
        {"schedule", schedule}};
    if (!validate.empty()) sections["validate"] = validate;
    if (!checkpoint.empty()) sections["checkpoint"] = checkpoint;
    return sections;
  }
  TrainedRun Train(const std::map<std::string, std::string>& sections,
                   const std::vector<std::string>& flags) const {
    return TrainSmallRun(folder_, sections, flags);
  }
  std::vector<std::string> NamesIn(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) names.push_back(entry.path().filename());
    return names;
  }
  // Returns what `weft eval` says of a checkpoint of the last run.
  std::pair<double, double> Evaluate(const std::string& checkpoint, std::vector<std::string> more) const {
    std::vector<std::string> words = {
        "weft", "eval", folder_ / "run.yaml", "--checkpoint", folder_ / ("out/" + checkpoint), "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = Command::Run(words, 120);
    EXPECT_EQ(r.code, 0) << r.err;
    const Json result = Json::parse(r.out, nullptr, /*allow_exceptions=*/false);
    if (!result.is_object()) return {};
    return {result["loss"], result["accuracy"]};
  }

  TestFolder folder_;
  const std::string every_two_ = absl::StrCat("{data: ", kHeldOut, ", every: 2}");
};

TEST_F(Validated, SchedulesOnTwoProcesses_HaveTheReferencesFiguresAndTheBitsOfATrainingWithout) {
  const std::map<std::string, std::vector<std::string>> schedules_of_rule = {
      {"1f1b", {"1f1b", "{fsdp: {shard: width}}", "zb_h1", "ddp"}},
      {"{ddp: {}, rule: cdp_v2}",
       {"{ddp: {}, rule: cdp_v2}", "{fsdp: {residency: migrating}, rule: cdp_v2}",
        "{fsdp: {}, rule: cdp_v2}"}}};
  for (const auto& [rule, schedules] : schedules_of_rule) {
    const TrainedRun reference = Train(Sections(rule, every_two_), {"--reference"});
    ASSERT_EQ(reference.result.code, 0) << reference.result.err;
    ASSERT_THAT(reference.validations, ElementsAre(Key(2), Key(4), Key(5)));
    const TrainedRun without = Train(Sections(rule, ""), {"--processes", "2"});
    ASSERT_EQ(without.result.code, 0) << without.result.err;
    EXPECT_TRUE(without.validations.empty());
    for (const std::string& schedule : schedules) {
      const TrainedRun run = Train(Sections(schedule, every_two_), {"--processes", "2"});
      ASSERT_EQ(run.result.code, 0) << run.result.err;
      EXPECT_EQ(run.validations, reference.validations) << schedule;
      EXPECT_EQ(run.losses, without.losses) << schedule;
      EXPECT_TRUE(run.weights == without.weights) << schedule;
      for (const std::string& name : NamesIn("out")) EXPECT_THAT(name, Not(HasSubstr("partial"))) << schedule;
      EXPECT_EQ(run.summary["validation_loss"], reference.validations.at(5).first);
      EXPECT_EQ(run.summary["validation_step"], 5);
      EXPECT_THAT(run.result.out, HasSubstr("validation   loss "));
      EXPECT_THAT(ReadWholeFile(folder_ / "out/loss.svg"), HasSubstr("validation, "));
    }
  }
}

// Validates with a checkpoint on the same step, and without.
TEST_F(Validated, Figures_AreThoseOfEvalOnACheckpointOfTheStep) {
  const TrainedRun run =
      Train(Sections("1f1b", absl::StrCat("{data: ", kHeldOut, ", every: 1}"), "{every: 2, keep: 2}"),
            {"--processes", "2"});
  ASSERT_EQ(run.result.code, 0) << run.result.err;
  ASSERT_THAT(run.validations, ElementsAre(Key(1), Key(2), Key(3), Key(4), Key(5)));
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoint-1")) << "its snapshot only passed";
  EXPECT_EQ(Evaluate("checkpoint-4", {"--data-images", folder_ / "held-images.idx", "--data-labels",
                                      folder_ / "held-labels.idx"}),
            run.validations.at(4));
  EXPECT_EQ(Evaluate("checkpoint", {"--validation"}), run.validations.at(5));

  const TrainedRun some = Train(
      Sections("ddp", absl::StrCat("{data: ", kHeldOut, ", every: 5, samples: 20}"), "{every: 2, keep: 2}"),
      {"--processes", "2"});
  ASSERT_EQ(some.result.code, 0) << some.result.err;
  ASSERT_THAT(some.validations, ElementsAre(Key(5)));
  EXPECT_NE(some.validations.at(5), run.validations.at(5)) << "fewer samples";
  EXPECT_EQ(Evaluate("checkpoint", {"--validation"}), some.validations.at(5));
  EXPECT_EQ(Evaluate("checkpoint", {"--validation", "--samples", "37"}), run.validations.at(5));
}

TEST_F(Validated, MoreSamplesThanThereAre_AreAllTakenWithAWarning) {
  const std::string validate = absl::StrCat("{data: ", kHeldOut, ", every: 5, samples: ");
  const TrainedRun all = Train(Sections("1f1b", absl::StrCat(validate, "37}")), {"--processes", "1"});
  EXPECT_THAT(all.result.err, Not(HasSubstr("validate.samples")));
  const TrainedRun more = Train(Sections("1f1b", absl::StrCat(validate, "38}")), {"--processes", "1"});
  EXPECT_THAT(more.result.err,
              HasSubstr("validate.samples: 38 are asked for, and the data have 37, so all are taken"));
  EXPECT_EQ(more.validations, all.validations);
}

// The validation behind the last step before the stop is of no multiple, or is made again.
TEST_F(Validated, StoppedAndResumedInItsFolder_HasTheUndisturbedCurve) {
  const TrainedRun reference = Train(Sections("1f1b", every_two_), {"--reference"});
  ASSERT_EQ(reference.result.code, 0) << reference.result.err;
  for (const int until : {3, 4}) {
    const TrainedRun stopped =
        Train(Sections("ddp", every_two_), {"--processes", "2", "--until", absl::StrCat(until)});
    ASSERT_EQ(stopped.result.code, 0) << stopped.result.err;
    EXPECT_THAT(stopped.validations, ElementsAre(Key(2), Key(until)));
    const std::string file = WriteSmallRun(folder_, Sections("1f1b", every_two_));
    for (const bool plain : {true, false}) {
      const std::string out = folder_ / (plain ? "plain" : "out");
      if (plain) fs::copy(folder_ / "out", out, fs::copy_options::recursive);
      std::vector<std::string> words = {"weft", "train", file, "--out", out, "--resume", out};
      words.push_back(plain ? "--reference" : "--processes=2");
      const CommandResult resumed = Command::Run(words, 120);
      ASSERT_EQ(resumed.code, 0) << resumed.err;
      EXPECT_EQ(ReadValidations(out), reference.validations) << until << (plain ? " by the reference" : "");
      for (const std::string& name : NamesIn(plain ? "plain" : "out"))
        EXPECT_THAT(name, Not(HasSubstr("partial")));
    }
    fs::remove_all(folder_ / "plain");
  }
}

TEST_F(Validated, HeldOutDataThatCannotBeUsed_AreRefusedBeforeAnythingStarts) {
  const auto refused = [&](const std::string& data) {
    const TrainedRun run = Train(Sections("1f1b", absl::StrCat("{data: ", data, "}")), {});
    EXPECT_EQ(run.result.code, 78) << run.result.err;
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    return run.result.err;
  };
  EXPECT_THAT(refused("{idx: {images: none.idx, labels: held-labels.idx}}"),
              AllOf(HasSubstr("run.yaml:"), HasSubstr("validate.data.idx.images: "), HasSubstr("none.idx")));
  EXPECT_THAT(refused("{idx: {images: held-images.idx, labels: labels.idx}}"),
              AllOf(HasSubstr("run.yaml:"), HasSubstr("validate.data.idx: "), HasSubstr("37 images")));
}

}  // namespace
}  // namespace weft::validate_test
