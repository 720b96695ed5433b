// Tests what an evaluation must do: count each sample once, with running averages, from a checkpoint of any
// cut.
#include "worker/shell/reference/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/conformance/training_driver.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing::evaluate_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

bool Always(const Evaluation&) { return true; }
const auto kAnyStep = [](const ReferenceStep&) { return true; };

std::string Trained(const RunSpec& run, const std::string& folder) {
  const absl::Status trained = RunReference(run, folder, kAnyStep);
  EXPECT_TRUE(trained.ok()) << trained;
  return folder + "/checkpoint";
}

// The run on a copy of its images [first, first + count) only; 50 images of `side`.
RunSpec OnImages(RunSpec run, const std::string& folder, int side, int first, int count) {
  const auto data = std::get<IdxData>(run.data.source);
  const auto cut = [&](const std::string& path, int header, int bytes, const std::string& name) {
    const std::string whole = ReadFile(path);
    std::string part = whole.substr(0, header) + whole.substr(header + first * bytes, count * bytes);
    part[7] = static_cast<char>(count);
    const std::string to = absl::StrCat(folder, "/", name, first, "_", count);
    WriteFile(to, part);
    return to;
  };
  run.data.source = IdxData{cut(data.images, 16, side * side, "images"), cut(data.labels, 8, 1, "labels")};
  return run;
}

TEST(EvaluateTest, SmallMlp_AfterTraining_BeatsChanceFromAnyCut) {
  TestFolder folder;
  RunSpec run = SmallMlpRun(folder.path(), 3);
  run.train.steps = 150;
  const std::string checkpoint = Trained(run, folder.path());
  const auto result = Evaluate(run, checkpoint, Always);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->version, "150");
  EXPECT_EQ(result->samples, 50);
  EXPECT_EQ(result->predictions, 50);
  EXPECT_GT(result->accuracy(), 0.5);
  const auto before = Evaluate(run, folder.path() + "/checkpoint-0", Always);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->version, "0");
  EXPECT_LT(result->loss(), 0.5 * before->loss());
  RunSpec other_cut = run;
  other_cut.layers_of_stage = {5};
  EXPECT_EQ(Evaluate(other_cut, checkpoint, Always)->losses.sum, result->losses.sum);
}

TEST(EvaluateTest, SmallGpt_EveryToken_IsAPrediction) {
  TestFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 2);
  run.train.steps = 60;
  std::get<GptSpec>(run.model).dropout = 0.3;
  const std::string checkpoint = Trained(run, folder.path());
  const auto result = Evaluate(run, checkpoint, Always);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->samples, (3000 - 1) / 10);
  EXPECT_EQ(result->predictions, result->samples * 10);
  EXPECT_GT(result->accuracy(), 0.2);
  // Evaluation drops nothing: a second one gives the same, and so does the model without dropout.
  std::get<GptSpec>(run.model).dropout = 0;
  EXPECT_EQ(Evaluate(run, checkpoint, Always)->losses.sum, result->losses.sum);
}

// A sample's scores do not depend on its neighbours with running averages, as they do in training.
TEST(EvaluateTest, ResNet_SamplesAloneAndTogether_ScoreTheSame) {
  TestFolder folder;
  RunSpec run = SmallResNetRun(folder.path(), 2, 18);
  run.train.steps = 20;
  const std::string checkpoint = Trained(run, folder.path());
  const int side = std::get<ResNetSpec>(run.model).size;
  const auto together = Evaluate(OnImages(run, folder.path(), side, 0, 5), checkpoint, Always);
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_EQ(together->samples, 5);
  double loss_sum = 0;
  int64_t correct = 0;
  for (int i = 0; i < 5; ++i) {
    const auto alone = Evaluate(OnImages(run, folder.path(), side, i, 1), checkpoint, Always);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(alone->samples, 1);
    loss_sum += alone->losses.sum;
    correct += alone->correct;
  }
  EXPECT_NEAR(together->losses.sum, loss_sum, 1e-4);
  EXPECT_EQ(together->correct, correct);
}

TEST(EvaluateTest, ResNet_OfAnImageThatWasLearned_IsRight) {
  TestFolder folder;
  RunSpec run = SmallResNetRun(folder.path(), 1, 18);
  run.train.steps = 60;
  run.train.optimizer = AdamW();
  const auto result = Evaluate(run, Trained(run, folder.path()), Always);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->accuracy(), 0.5);
}

TEST(EvaluateTest, UnusableCheckpoints_AreRefusedByName) {
  TestFolder folder;
  RunSpec run = SmallMlpRun(folder.path(), 2);
  run.train.steps = 1;
  const std::string checkpoint = Trained(run, folder.path());
  const auto refused = [&](absl::StatusCode code, const std::string& at, const std::string& part) {
    const absl::Status status = Evaluate(run, at, Always).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  refused(absl::StatusCode::kNotFound, folder.path() + "/none", "none/model.safetensors.index.json");

  const RunSpec whole = run;
  std::get<MlpSpec>(run.model).width = 38;
  refused(absl::StatusCode::kInvalidArgument, checkpoint, "of size [37], the run file's model has [38]");
  std::get<MlpSpec>(run.model).width = 37;
  std::get<MlpSpec>(run.model).layers = 6;
  refused(absl::StatusCode::kInvalidArgument, checkpoint, "stage01.linear4.bias of size [10]");
  std::get<MlpSpec>(run.model).layers = 4;
  refused(absl::StatusCode::kInvalidArgument, checkpoint, "the checkpoint is of another model");
  run = whole;

  const std::string stage = checkpoint + "/stage01.safetensors",
                    index = checkpoint + "/model.safetensors.index.json";
  const std::string content = ReadFile(stage), names = ReadFile(index);
  WriteFile(stage, content.substr(0, content.size() - 1));
  refused(absl::StatusCode::kDataLoss, checkpoint, "stage01.safetensors");
  std::string other_version = content;
  const size_t version = other_version.find("\"version\":\"1\"");
  ASSERT_NE(version, std::string::npos);
  other_version[version + 11] = '7';
  WriteFile(stage, other_version);
  refused(absl::StatusCode::kDataLoss, checkpoint, "has version 7");
  WriteFile(stage, content);
  WriteFile(index, names.substr(0, names.size() / 2));
  refused(absl::StatusCode::kDataLoss, checkpoint, "model.safetensors.index.json is damaged");
  // The index of an earlier release, without a checksum of its own, with another map from parameters to
  // files, and with an entry for each of these files.
  const auto index_with = [&](const Json& weight_map) {
    Json forged = Json::parse(names);
    Json& files = forged["metadata"]["files"];
    for (const Json& file : weight_map) {
      if (!files.contains(file)) files[file.get<std::string>()] = files["stage01.safetensors"];
    }
    forged["weight_map"] = weight_map;
    forged["metadata"].erase("crc32");
    WriteFile(index, forged.dump());
  };
  index_with({{"stage00.linear0.weight", "../../elsewhere"}});
  refused(absl::StatusCode::kDataLoss, checkpoint, "model.safetensors.index.json is damaged");
  index_with({{"stage01.linear4.bias", "stage01.safetensors"}});
  refused(absl::StatusCode::kInvalidArgument, checkpoint, "names no linear0.bias");
  index_with({{"stage01.linear9.bias", "stage01.safetensors"}});
  refused(absl::StatusCode::kDataLoss, checkpoint, "does not hold stage01.linear9.bias");
  Json later = Json::parse(names);
  later["metadata"]["format"] = 2;
  later["metadata"].erase("crc32");
  WriteFile(index, later.dump());
  refused(absl::StatusCode::kFailedPrecondition, checkpoint,
          "has the format 2, and this release reads format 1");
  // An index without the files' checksums, and one with other checksums than the files have.
  WriteFile(index, Json{{"weight_map", Json::parse(names)["weight_map"]}}.dump());
  refused(absl::StatusCode::kDataLoss, checkpoint, "it is not the index of a checkpoint");
  Json of_another_run = Json::parse(names);
  of_another_run["metadata"]["files"]["stage01.safetensors"]["crc32"] = "00000000";
  of_another_run["metadata"].erase("crc32");
  WriteFile(index, of_another_run.dump());
  refused(absl::StatusCode::kDataLoss, checkpoint, "stage01.safetensors has checksum");
}

TEST(EvaluateTest, StoppedByItsCaller_SaysWhere) {
  TestFolder folder;
  RunSpec run = SmallMlpRun(folder.path(), 1);
  run.train.steps = 1;
  const auto result =
      Evaluate(run, Trained(run, folder.path()), [](const Evaluation& e) { return e.samples < 32; });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("after 32 of 50 samples"));
}

}  // namespace
}  // namespace weft::testing::evaluate_test
