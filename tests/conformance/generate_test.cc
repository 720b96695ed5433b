// Tests what generating must do: go on from a prompt as the model's own scores say, from a checkpoint of any
// cut.
#include "worker/shell/reference/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/training_driver.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

class GenerateTest : public ::testing::Test {
 protected:
  GenerateTest() : run_(SmallGptRun(folder_.path(), 2)) {
    run_.train.steps = 40;
    EXPECT_TRUE(RunReference(run_, folder_.path(), [](const ReferenceStep&) { return true; }).ok());
  }
  int context() const { return std::get<GptSpec>(run_.model).context; }
  std::vector<int64_t> Generated(const GenerateRequest& request) {
    std::vector<int64_t> tokens;
    const absl::Status status = Generate(run_, folder_.path() + "/checkpoint", request, [&](int64_t token) {
      tokens.push_back(token);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    return tokens;
  }

  TemporaryFolder folder_;
  RunSpec run_;
};

GenerateRequest Greedy(std::vector<int64_t> prompt, int tokens) {
  return {std::move(prompt), tokens, {/*temperature=*/0, 0, 1}};
}

// Evaluated as data, every token that was chosen greedily is the one with the highest score.
TEST_F(GenerateTest, GreedyTokens_AreTheHighestScoresOfTheEvaluation) {
  const std::vector<int64_t> tokens = Generated(Greedy({'t'}, context()));
  ASSERT_EQ(tokens.size(), static_cast<size_t>(context()));
  std::string text = "t";
  for (const int64_t token : tokens) text += static_cast<char>(token);
  RunSpec on_text = run_;
  on_text.data.source = TextData{folder_.path() + "/generated"};
  on_text.train.batch = on_text.train.microbatches = 1;
  WriteFile(folder_.path() + "/generated", text);
  const auto all = [](const Evaluation&) { return true; };
  const auto counted = Evaluate(on_text, folder_.path() + "/checkpoint", all);
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_EQ(counted->predictions, context());
  EXPECT_EQ(counted->correct, context());
}

TEST_F(GenerateTest, PastTheContext_TheLastTokensAlone_DecideWhatFollows) {
  const int more = 7;
  const std::vector<int64_t> tokens = Generated(Greedy({'a', 'b'}, context() + more));
  std::vector<int64_t> text = {'a', 'b'};
  text.insert(text.end(), tokens.begin(), tokens.end());
  for (size_t i = context(); i + 1 < text.size(); ++i) {
    const std::vector<int64_t> window(text.begin() + static_cast<std::ptrdiff_t>(i) - context(),
                                      text.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(Generated(Greedy(window, 1)), std::vector<int64_t>{text[i]}) << "token " << i;
  }
}

TEST_F(GenerateTest, Cut_ChangesNoToken) {
  const GenerateRequest request = {{'x'}, 30, {1, 0, 5}};
  const std::vector<int64_t> tokens = Generated(request);
  run_.layers_of_stage = {static_cast<int>(run_.layers_of_stage[0] + run_.layers_of_stage[1])};
  EXPECT_EQ(Generated(request), tokens);
}

TEST_F(GenerateTest, Bytes_AreAllThatIsChosen_ThoughTheVocabularyIsLarger) {
  std::get<GptSpec>(run_.model).vocabulary = 2000;
  run_.train.steps = 1;
  ASSERT_TRUE(RunReference(run_, folder_.path(), [](const ReferenceStep&) { return true; }).ok());
  for (const int64_t token : Generated({{'x'}, 60, {100, 0, 5}})) EXPECT_LT(token, 256);
}

TEST_F(GenerateTest, Listener_EndsIt) {
  int heard = 0;
  const absl::Status status =
      Generate(run_, folder_.path() + "/checkpoint", Greedy({'x'}, 50), [&](int64_t) { return ++heard < 3; });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(heard, 3);
}

TEST_F(GenerateTest, WhatCannotBeRead_IsRefused) {
  const auto refused = [&](const RunSpec& run, const GenerateRequest& request, const std::string& part) {
    const absl::Status status =
        Generate(run, folder_.path() + "/checkpoint", request, [](int64_t) { return true; });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  refused(run_, Greedy({}, 1), "takes at least one");
  refused(run_, Greedy({'x', 256}, 1), "token 256; the model's vocabulary has tokens 0 to 255");
  refused(run_, Greedy({-1}, 1), "token -1");
  refused(SmallMlpRun(folder_.path(), 2), Greedy({'x'}, 1), "the model is mlp; only a gpt");
}

}  // namespace
}  // namespace weft::testing
