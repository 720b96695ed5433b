// Tests what generating must do: go on from a prompt as the model's own scores say, from a checkpoint of any
// cut.
#include "worker/shell/reference/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/conformance/training_driver.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing::generate_test {
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

  TestFolder folder_;
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

// ---- Exported models.

class ExportedGenerateTest : public ::testing::Test {
 protected:
  // Trains for one step.
  RunSpec Trained(const std::string& model, double lr) {
    RunSpec run = SmallExportedRun(model, 2);
    run.train.steps = 1;
    std::get<AdamWSpec>(run.train.optimizer).lr = lr;
    EXPECT_TRUE(RunReference(run, folder_.path(), [](const ReferenceStep&) { return true; }).ok());
    return run;
  }
  absl::StatusOr<std::vector<int64_t>> Generated(const RunSpec& run, const GenerateRequest& request) {
    std::vector<int64_t> tokens;
    const absl::Status status = Generate(run, folder_.path() + "/checkpoint", request, [&](int64_t token) {
      tokens.push_back(token);
      return true;
    });
    if (!status.ok()) return status;
    return tokens;
  }
  void ExpectRefused(const RunSpec& run, std::vector<int64_t> prompt, const std::string& part) {
    const absl::Status status = Generated(run, Greedy(std::move(prompt), 1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  TestFolder folder_;
};

// The context is 8.
const std::vector<int64_t> kWhole = {1, 2, 3, 4, 5, 6, 7, 8};

// Changes the graph of the model's evaluation.
void ChangeEvaluation(RunSpec* run, const std::function<void(ExportedLayer&)>& change) {
  auto& exported = std::get<ExportedSpec>(run->model);
  auto model = std::make_shared<ExportedModel>(*exported.model);
  auto evaluation = std::make_shared<ExportedModel>(*model->evaluation);
  change(evaluation->layers[0]);
  model->evaluation = std::move(evaluation);
  exported.model = std::move(model);
}

// Lets attention see all tokens.
void SeeAll(ExportedLayer& evaluation) {
  int changed = 0;
  for (GraphOperation& operation : evaluation.operations) {
    if (operation.name != "aten::scaled_dot_product_attention") continue;
    operation.arguments[3] = std::monostate();
    ++changed;
  }
  EXPECT_GT(changed, 0);
}

// Takes the last row off the scores that the loss compares.
void TakeOffLastRow(ExportedLayer& evaluation) {
  std::vector<GraphOperation>& operations = evaluation.operations;
  const auto loss = std::find_if(operations.begin(), operations.end(), [](const GraphOperation& o) {
    return o.name == "aten::cross_entropy_loss";
  });
  ASSERT_NE(loss, operations.end());
  const int fewer = evaluation.values++;
  const GraphArgument scores = std::exchange(loss->arguments[0], GraphValue{fewer});
  const GraphOperation slice = {
      "aten::slice", "Tensor", {scores, int64_t{0}, int64_t{0}, int64_t{7}, int64_t{1}}, {fewer}, ""};
  operations.insert(loss, slice);
}

TEST_F(ExportedGenerateTest, ModelThatSeesLaterTokens_IsRefused_ThoughThePromptFillsItsContext) {
  RunSpec run = Trained("gpt_scored", 0.01);
  EXPECT_TRUE(Generated(run, Greedy(kWhole, 3)).ok());
  ChangeEvaluation(&run, SeeAll);
  std::vector<int64_t> longer = kWhole;
  longer.push_back(9);
  for (const std::vector<int64_t>& prompt : {std::vector<int64_t>{1, 2}, kWhole, longer})
    ExpectRefused(run, prompt, "only a causal model writes text");
}

TEST_F(ExportedGenerateTest, ModelThatDiverged_IsSaidToHaveDiverged) {
  const RunSpec run = Trained("gpt_scored", 1e30);
  for (const std::vector<int64_t>& prompt : {std::vector<int64_t>{1, 2}, kWhole})
    ExpectRefused(run, prompt, "is not a finite number");
}

// The last token has no label.
TEST_F(ExportedGenerateTest, ModelWhoseScoresEndOneTokenEarlier_ReadsOneTokenLess) {
  RunSpec run = Trained("gpt_scored", 0.01);
  ChangeEvaluation(&run, TakeOffLastRow);
  const auto all = Generated(run, Greedy(kWhole, 6));
  ASSERT_TRUE(all.ok()) << all.status();
  const auto last = Generated(run, Greedy({kWhole.begin() + 1, kWhole.end()}, 6));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(*all, *last);
}

}  // namespace
}  // namespace weft::testing::generate_test
