// `weft generate`: a trained gpt writes on from a prompt, the same text for the same seed.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"

namespace weft::generate_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kModel[] = "{gpt: {layers: 2, width: 32, heads: 2, context: 16, vocabulary: 300}}";

class GenerateTest : public ::testing::Test {
 protected:
  GenerateTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "to be, or not to be. ";
    folder_.Write("text", text);
  }
  // Trains as one plain loop in a folder of the run's name.
  std::string Trained(const std::string& name, const std::string& model, const std::string& data, int steps) {
    const std::string run = folder_.Write(
        name + ".yaml",
        absl::StrCat("name: ", name, "\nmodel: ", model, "\ndata: ", data, "\ntrain: {steps: ", steps,
                     ", batch: 8, microbatches: 2, optimizer: {adamw: {lr: 0.005}}}\n",
                     "stages: 2\nschedule: 1f1b\n"));
    const CommandResult trained =
        Command::Run({"weft", "train", run, "--reference", "--out", folder_ / name}, 120);
    EXPECT_EQ(trained.code, 0) << trained.err;
    return folder_ / name;
  }
  static CommandResult Generate(const std::string& from, const std::vector<std::string>& further) {
    std::vector<std::string> arguments = {"weft", "generate", from};
    arguments.insert(arguments.end(), further.begin(), further.end());
    return Command::Run(arguments);
  }

  TestFolder folder_;
};

TEST_F(GenerateTest, TrainedGpt_WritesWhatItLearned_TheSameForTheSameSeed) {
  const std::string out = Trained("gpt", kModel, "{text: {path: text}}", 120);
  const CommandResult greedy =
      Generate(out, {"--prompt", "to be, or", "--temperature", "0", "--tokens", "30"});
  ASSERT_EQ(greedy.code, 0) << greedy.err;
  EXPECT_EQ(greedy.out, "to be, or not to be. to be, or not to b\n");
  EXPECT_EQ(greedy.err, "");
  // The run file means the same model; its checkpoint is elsewhere.
  EXPECT_EQ(Generate(folder_ / "gpt.yaml", {"--checkpoint", out + "/checkpoint", "--prompt", "to be, or",
                                            "--temperature", "0", "--tokens", "30"})
                .out,
            greedy.out);

  const std::vector<std::string> drawn = {"--prompt", "to", "--temperature", "3", "--tokens", "40", "--seed"};
  const auto with_seed = [&](const std::string& seed) {
    std::vector<std::string> arguments = drawn;
    arguments.push_back(seed);
    return Generate(out, arguments).out;
  };
  EXPECT_EQ(with_seed("3"), with_seed("3"));
  EXPECT_NE(with_seed("3"), with_seed("4"));
  std::vector<std::string> likeliest = drawn;
  likeliest.insert(likeliest.end(), {"4", "--top-k", "1"});
  EXPECT_THAT(Generate(out, likeliest).out, HasSubstr("to be, or not to be."));

  const CommandResult json =
      Generate(out, {"--prompt", "to be, or", "--temperature", "0", "--tokens", "4", "-o", "json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(Json::parse(json.out)["text"], " not");
  EXPECT_EQ(Json::parse(json.out)["tokens"], (std::vector<int>{' ', 'n', 'o', 't'}));
  EXPECT_EQ(Json::parse(json.out)["name"], "gpt");

  CommandResult refused = Generate(out, {"--prompt", ""});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--prompt is empty"));
  refused = Generate(out, {"--checkpoint", folder_ / "nothing"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err, HasSubstr("nothing/model.safetensors.index.json"));
  EXPECT_EQ(refused.out, "");
  // run.json names the file of a run that has not finished; a newer checkpoint on its way is taken.
  std::filesystem::remove(out + "/summary.json");
  std::filesystem::rename(out + "/checkpoint", out + "/checkpoint-120");
  EXPECT_EQ(Generate(out, {"--prompt", "to be, or", "--temperature", "0", "--tokens", "30"}).out, greedy.out);
  std::filesystem::remove(out + "/run.json");
  refused = Generate(out, {});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("gpt has no summary.json"), HasSubstr("--checkpoint")));
}

TEST_F(GenerateTest, TrainedOnIds_ReadsAndWritesIds) {
  std::string ids;
  for (int i = 0; i < 3000; ++i)
    ids += {static_cast<char>(i % 5 == 0 ? 299 & 0xff : i % 5), i % 5 == 0 ? '\1' : '\0'};
  folder_.Write("tokens", ids);
  const std::string out = Trained("ids", kModel, "{text: {path: tokens, tokens: uint16}}", 60);
  const CommandResult greedy = Generate(out, {"--prompt", "299, 1 2", "--temperature", "0", "--tokens", "4"});
  ASSERT_EQ(greedy.code, 0) << greedy.err;
  EXPECT_EQ(greedy.out, "299, 1 2 3 4 299 1\n");
  CommandResult refused = Generate(out, {"--prompt", "to be"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("\"to\" is not a token"), HasSubstr("data.text.tokens")));
  refused = Generate(out, {"--prompt", "300"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err, HasSubstr("token 300 is not in the model's vocabulary, 0 to 299"));
}

TEST_F(GenerateTest, NoSuchFolderOrFile_SaysSo) {
  const CommandResult refused = Generate(folder_ / "none", {});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err, HasSubstr("none: there is no such folder of a run, and no such run file"));
}

TEST_F(GenerateTest, ModelThatIsNoGpt_IsRefusedByName) {
  const std::string run = folder_.Write(
      "mlp.yaml",
      "model: {mlp: {layers: 2, width: 4, inputs: 4, classes: 2}}\ndata: {idx: {images: i, labels: l}}\n"
      "train: {steps: 1, batch: 2, microbatches: 1, optimizer: {sgd: {lr: 0.1}}}\nstages: 1\nschedule: "
      "1f1b\n");
  const CommandResult refused = Generate(run, {});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err,
              HasSubstr("the model of mlp is mlp; only a gpt, or an exported language model, writes text"));
}

}  // namespace
}  // namespace weft::generate_test
