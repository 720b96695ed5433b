// `weft eval`: a trained model's loss and accuracy are those that a count by hand gives.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"

namespace weft::eval_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kSide = 6, kClasses = 4, kWidth = 24;

std::string BigEndian(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
          static_cast<char>(v)};
}

struct Images {
  std::vector<std::vector<double>> pixels;
  std::vector<int> labels;
};

// Noisy images whose bright columns tell the label, some of them wrongly labelled.
Images WriteImages(const TestFolder& folder, const std::string& name, int count, uint32_t seed) {
  std::mt19937 rng(seed);
  Images images;
  std::string bytes = BigEndian(0x803) + BigEndian(count) + BigEndian(kSide) + BigEndian(kSide);
  std::string labels = BigEndian(0x801) + BigEndian(count);
  for (int i = 0; i < count; ++i) {
    const int shown = static_cast<int>(rng() % kClasses);
    const int label = rng() % 5 == 0 ? static_cast<int>(rng() % kClasses) : shown;
    labels += static_cast<char>(label);
    images.labels.push_back(label);
    std::vector<double>& of_image = images.pixels.emplace_back();
    for (int p = 0; p < kSide * kSide; ++p) {
      const auto pixel = static_cast<uint8_t>(p % kClasses == shown ? 120 + rng() % 130 : rng() % 150);
      bytes += static_cast<char>(pixel);
      of_image.push_back(pixel / 255.0);
    }
  }
  folder.Write(name + "-images", bytes);
  folder.Write(name + "-labels", labels);
  return images;
}

// Float32 tensors of a safetensors file by name, read plainly.
std::map<std::string, std::vector<float>> Tensors(const std::string& path) {
  const std::string file = ReadWholeFile(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::map<std::string, std::vector<float>> tensors;
  const Json header = Json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name].resize((end - begin) / sizeof(float));
    std::memcpy(tensors[name].data(), file.data() + 8 + length + begin, end - begin);
  }
  return tensors;
}

std::vector<double> Product(const std::vector<float>& weight, const std::vector<float>& bias,
                            const std::vector<double>& x) {
  std::vector<double> y(bias.begin(), bias.end());
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) y[i] += static_cast<double>(weight[i * x.size() + j]) * x[j];
  }
  return y;
}

struct ByHand {
  int correct = 0;
  double loss = 0;
};

// An mlp of two layers, cut into two stages.
ByHand CountByHand(const std::string& checkpoint, const Images& images) {
  auto first = Tensors(checkpoint + "/stage00.safetensors");
  auto second = Tensors(checkpoint + "/stage01.safetensors");
  ByHand result;
  for (size_t i = 0; i < images.pixels.size(); ++i) {
    std::vector<double> hidden =
        Product(first["stage00.linear0.weight"], first["stage00.linear0.bias"], images.pixels[i]);
    for (double& x : hidden) x = x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    const std::vector<double> scores =
        Product(second["stage01.linear1.weight"], second["stage01.linear1.bias"], hidden);
    double sum = 0;
    int best = 0;
    for (int c = 0; c < kClasses; ++c) {
      sum += std::exp(scores[c]);
      if (scores[c] > scores[best]) best = c;
    }
    result.correct += best == images.labels[i];
    result.loss += std::log(sum) - scores[images.labels[i]];
  }
  result.loss /= static_cast<double>(images.pixels.size());
  return result;
}

class EvalTest : public ::testing::Test {
 protected:
  EvalTest() {
    trained_on_ = WriteImages(folder_, "train", 200, 1);
    others_ = WriteImages(folder_, "test", 77, 2);
    run_ = folder_.Write(
        "run.yaml", absl::StrCat("name: eval\nmodel: {mlp: {layers: 2, width: ", kWidth,
                                 ", inputs: ", kSide * kSide, ", classes: ", kClasses,
                                 "}}\ndata: {idx: {images: train-images, labels: train-labels}}\n"
                                 "train: {steps: 60, batch: 40, microbatches: 2, optimizer: {adamw: {lr: "
                                 "0.01}}}\nstages: 2\nschedule: 1f1b\n"));
    const CommandResult trained =
        Command::Run({"weft", "train", run_, "--reference", "--out", folder_ / "out"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    checkpoint_ = folder_ / "out/checkpoint";
  }
  CommandResult Eval(const std::vector<std::string>& further) {
    std::vector<std::string> arguments = {"weft", "eval", run_};
    arguments.insert(arguments.end(), further.begin(), further.end());
    return Command::Run(arguments);
  }

  TestFolder folder_;
  Images trained_on_, others_;
  std::string run_, checkpoint_;
};

TEST_F(EvalTest, TrainedMlp_OnItsDataAndOnOther_IsAsCountedByHand) {
  for (const bool other : {false, true}) {
    std::vector<std::string> arguments = {"--checkpoint", checkpoint_, "-o", "json"};
    if (other) {
      for (const std::string& more : {std::string("--data-images"), folder_ / "test-images",
                                      std::string("--data-labels"), folder_ / "test-labels"}) {
        arguments.push_back(more);
      }
    }
    const CommandResult result = Eval(arguments);
    ASSERT_EQ(result.code, 0) << result.err;
    const Json json = Json::parse(result.out);
    const Images& images = other ? others_ : trained_on_;
    const ByHand expected = CountByHand(checkpoint_, images);
    EXPECT_EQ(json["samples"], images.labels.size());
    EXPECT_EQ(json["correct"], expected.correct);
    EXPECT_NEAR(json["loss"].get<double>(), expected.loss, 1e-5);
    EXPECT_EQ(json["accuracy"].get<double>(), expected.correct / static_cast<double>(images.labels.size()));
    EXPECT_GT(json["accuracy"].get<double>(), 2.0 / kClasses);
    EXPECT_LT(json["accuracy"].get<double>(), 1) << "some labels are wrong";
    EXPECT_EQ(json["version"], 60);
    EXPECT_EQ(json["name"], "eval");
  }
  const CommandResult table = Eval({"--checkpoint", checkpoint_});
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, HasSubstr("accuracy"));
  EXPECT_THAT(table.out, HasSubstr("(version 60)"));
}

TEST_F(EvalTest, WhatCannotBeEvaluated_IsRefusedByNameWithItsCode) {
  CommandResult result = Eval({"--checkpoint", folder_ / "nothing"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, HasSubstr("nothing/model.safetensors.index.json"));
  EXPECT_EQ(result.out, "");

  result = Eval({"--checkpoint", checkpoint_, "--data-images", folder_ / "test-images"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--data-labels"));
  result = Eval({"--checkpoint", checkpoint_, "--data-text", run_});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, HasSubstr("learns from labelled images"));
  result = Eval({"--checkpoint", checkpoint_, "--data-images", folder_ / "none", "--data-labels",
                 folder_ / "test-labels"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, HasSubstr("none"));

  const std::string stage = checkpoint_ + "/stage01.safetensors";
  std::filesystem::rename(stage, stage + ".kept");
  std::filesystem::create_symlink("stage01.safetensors", stage);
  result = Eval({"--checkpoint", checkpoint_});
  EXPECT_EQ(result.code, 78) << "it cannot be opened";
  EXPECT_THAT(result.err, HasSubstr("cannot open "));
  std::filesystem::rename(stage + ".kept", stage);
  std::filesystem::resize_file(stage, std::filesystem::file_size(stage) - 3);
  result = Eval({"--checkpoint", checkpoint_});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, HasSubstr("stage01.safetensors"));
}

// Returns numbers of two bytes, the low byte first.
std::string Tokens16(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += {static_cast<char>(i * i % 29), '\0'};
  return bytes;
}

// Trains a step on tokens of two bytes, and returns the number of samples that a text of its own gives.
int SamplesOfOtherText(const TestFolder& folder, const std::string& model, const std::string& fields,
                       const std::string& text) {
  folder.Write("tokens.bin", Tokens16(100));
  const std::string run = folder.Write(
      "run.yaml",
      absl::StrCat("model: {", model, "}\ndata: {text: {path: tokens.bin, tokens: uint16", fields,
                   "}}\ntrain: {steps: 1, batch: 3, microbatches: 1}\nstages: 1\nschedule: 1f1b\n"));
  const CommandResult trained = Command::Run({"weft", "train", run, "--reference", "--out", folder / "out"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  const CommandResult evaluated =
      Command::Run({"weft", "eval", run, "--checkpoint", folder / "out/checkpoint", "--data-text",
                    folder.Write("other", text), "-o", "json"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  return evaluated.code == 0 ? Json::parse(evaluated.out)["samples"].get<int>() : 0;
}

TEST(EvalText, OtherTextOfAGpt_IsReadByteByByte) {
  const TestFolder folder;
  EXPECT_EQ(SamplesOfOtherText(folder, "gpt: {layers: 1, width: 8, heads: 2, context: 8}", "",
                               std::string(8 * 20 + 1, 'a')),
            20);
}

TEST(EvalText, OtherTextOfAnExportedModel_HasTheFormOfItsOwnAndFillsTheSameFields) {
  const TestFolder folder;
  const std::string models = std::string(std::getenv("WEFT_SOURCE")) + "/tests/exported/models/";
  EXPECT_EQ(SamplesOfOtherText(folder, absl::StrCat("exported: ", models, "gpt_scored.weft"),
                               ", inputs: tokens, targets: targets", Tokens16(8 * 6 + 1)),
            6);
}

}  // namespace
}  // namespace weft::eval_test
