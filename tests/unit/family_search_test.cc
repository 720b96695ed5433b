// The search over families, with predictions that are formulas: what it tries, keeps and improves.
#include "client/planning/family_search.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/planning/needed_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::family_search_test {
namespace {

using testing::HasSubstr;

// A step takes as long as the stage with most layers; each stage that recomputes costs a little more, and one
// that retains costs memory.
class FamilySearchTest : public testing::Test {
 protected:
  FamilySearchTest() {
    options_.ranks = 4;
    options_.work.assign(8, 1);
    options_.microbatches = {8};
  }

  absl::StatusOr<PlanPrediction> Predict(const PlanChoice& choice) {
    PlanPrediction prediction;
    prediction.ranks = 4;
    prediction.step = *std::max_element(choice.layers_of_stage.begin(), choice.layers_of_stage.end());
    prediction.step += choice.schedule.name == "1f1b" ? 0 : 1;
    std::vector<std::string> policies = absl::StrSplit(choice.schedule.activations, '/');
    policies.resize(choice.stages(), policies[0]);
    const auto retaining = std::count(policies.begin(), policies.end(), "retain");
    prediction.step += 0.01 * static_cast<double>(choice.stages() - retaining);
    if (retaining > most_retaining_) return absl::FailedPreconditionError("too many stages retain");
    prediction.peak_bytes.assign(4, static_cast<double>(retaining));
    return prediction;
  }

  FamilySearchResult Search() {
    const auto found = SearchFamilies(options_, [this](const PlanChoice& choice) { return Predict(choice); });
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or(FamilySearchResult());
  }

  FamilySearchOptions options_;
  int most_retaining_ = 100;
};

TEST_F(FamilySearchTest, EveryFamily_IsOrderedByItsStep) {
  const FamilySearchResult found = Search();
  ASSERT_GE(found.best.size(), 5u);
  EXPECT_EQ(found.best[0].choice.schedule.name, "1f1b");
  for (size_t i = 1; i < found.best.size(); ++i)
    EXPECT_LE(found.best[i - 1].prediction.step, found.best[i].prediction.step);
  EXPECT_FALSE(found.stopped);
}

TEST_F(FamilySearchTest, UnequalRanks_MoveTheCut) {
  options_.schedule = "1f1b";
  const auto slow_first = [](const PlanChoice& choice) -> absl::StatusOr<PlanPrediction> {
    if (choice.stages() != 4) return absl::InvalidArgumentError("four stages");
    PlanPrediction prediction;
    prediction.ranks = 4;
    const double rest = *std::max_element(choice.layers_of_stage.begin() + 1, choice.layers_of_stage.end());
    prediction.step = std::max(3.0 * choice.layers_of_stage[0], rest);
    return prediction;
  };
  const auto found = SearchFamilies(options_, slow_first);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->best[0].choice.layers_of_stage[0], 1);
  EXPECT_EQ(found->best[0].prediction.step, 3);
}

TEST_F(FamilySearchTest, MemoryForOneStage_LeavesOneThatRetains) {
  most_retaining_ = 1;
  options_.schedule = "1f1b";
  options_.activations = {"retain", "recompute"};
  const FamilySearchResult found = Search();
  ASSERT_FALSE(found.best.empty());
  const std::vector<std::string> policies = absl::StrSplit(found.best[0].choice.schedule.activations, '/');
  EXPECT_EQ(std::count(policies.begin(), policies.end(), "retain"), 1);
  EXPECT_EQ(std::count(policies.begin(), policies.end(), "recompute"), found.best[0].choice.stages() - 1);
}

// Neither helps alone: the larger stage does not fit, and another policy costs time.
TEST_F(FamilySearchTest, LargerStageThatDoesNotFit_TakesItsLayersWithAnotherPolicy) {
  options_.schedule = "1f1b";
  options_.activations = {"retain", "offload"};
  const auto fast_first = [](const PlanChoice& choice) -> absl::StatusOr<PlanPrediction> {
    if (choice.stages() != 4) return absl::InvalidArgumentError("four stages");
    std::vector<std::string> policies = absl::StrSplit(choice.schedule.activations, '/');
    policies.resize(4, policies[0]);
    const auto moved = std::count(policies.begin(), policies.end(), "offload");
    if (choice.layers_of_stage[0] > 2 && policies[0] == "retain")
      return absl::FailedPreconditionError("the first stage does not fit");
    PlanPrediction prediction;
    prediction.ranks = 4;
    prediction.step = 10 - choice.layers_of_stage[0] + 0.1 * static_cast<double>(moved);
    return prediction;
  };
  const auto found = SearchFamilies(options_, fast_first);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->best[0].choice.layers_of_stage, (std::vector<int>{3, 1, 2, 2}));
  EXPECT_EQ(found->best[0].choice.schedule.activations, "offload/retain/retain/retain");
}

TEST_F(FamilySearchTest, TooLittleMemory_NamesWhatLacksIt) {
  most_retaining_ = 0;
  options_.memory = 0.5;
  options_.predict_within = [this](const PlanChoice& choice, double memory) {
    most_retaining_ = memory == 0 ? 100 : static_cast<int>(memory);
    auto prediction = Predict(choice);
    most_retaining_ = 0;
    return prediction;
  };
  const FamilySearchResult found = Search();
  EXPECT_TRUE(found.best.empty());
  EXPECT_FALSE(found.lacking_memory.empty());
  EXPECT_EQ(found.enough, 4) << "for the four stages that retain";
  EXPECT_THAT(std::string(found.reason.message()), HasSubstr("too many stages retain"));
}

// The last layer has many bytes, and is as fast as the others.
TEST_F(FamilySearchTest, EqualPartsThatLackMemory_GiveLayersAwayUntilTheyFit) {
  options_.schedule = "1f1b";
  options_.memory = 5;
  options_.predict_within = [](const PlanChoice& choice, double memory) -> absl::StatusOr<PlanPrediction> {
    if (choice.stages() != 4) return absl::InvalidArgumentError("four stages");
    PlanPrediction prediction;
    prediction.ranks = 4;
    prediction.step = *std::max_element(choice.layers_of_stage.begin(), choice.layers_of_stage.end());
    for (const int layers : choice.layers_of_stage) prediction.peak_bytes.push_back(layers);
    prediction.peak_bytes.back() += 4;
    const double most = *std::max_element(prediction.peak_bytes.begin(), prediction.peak_bytes.end());
    if (memory > 0 && most > memory) return absl::FailedPreconditionError("a stage does not fit");
    return prediction;
  };
  const auto search = [&] {
    return SearchFamilies(
        options_, [&](const PlanChoice& choice) { return options_.predict_within(choice, options_.memory); });
  };
  const auto found = search();
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty());
  EXPECT_EQ(found->best[0].choice.layers_of_stage.back(), 1);
  EXPECT_EQ(found->best[0].prediction.step, 3);
  options_.memory = 4;
  const auto lacking = search();
  ASSERT_TRUE(lacking.ok()) << lacking.status();
  EXPECT_TRUE(lacking->best.empty());
  EXPECT_EQ(lacking->enough, 5);
}

// Less than a byte is not looked for, and what is known counts when the time is over.
TEST(NeededMemory, ChoiceThatNeedsAByteOrHasNoTime_IsNotMadeLess) {
  PlanChoice choice;
  choice.layers_of_stage = {2, 2};
  const PredictWithin predict = [](const PlanChoice& of, double memory) -> absl::StatusOr<PlanPrediction> {
    PlanPrediction prediction;
    prediction.peak_bytes = {static_cast<double>(of.layers_of_stage[0] - 1)};
    if (memory > 0 && memory < prediction.peak_bytes[0]) return absl::FailedPreconditionError("too little");
    return prediction;
  };
  const auto never = [] { return false; };
  EXPECT_EQ(BytesNeeded(choice, 2, predict, never), 1);
  EXPECT_EQ(BytesNeeded(choice, 1, predict, never), std::nullopt);
  EXPECT_EQ(BytesNeeded(choice, 2, predict, [] { return true; }), std::nullopt);
  EXPECT_EQ(NeedLess({choice, 1}, {"retain"}, 0.5, predict, never).bytes, 1);
}

TEST_F(FamilySearchTest, OldWeights_AreTakenOnlyByName) {
  const auto old = [](const PlanChoice&) -> absl::StatusOr<PlanPrediction> {
    PlanPrediction prediction;
    prediction.ranks = 4;
    prediction.step = 1;
    prediction.staleness = 1;
    return prediction;
  };
  EXPECT_TRUE(SearchFamilies(options_, old)->best.empty());
  options_.schedule = "pipedream_2bw";
  EXPECT_FALSE(SearchFamilies(options_, old)->best.empty());
}

// Nobody knows what such a pair takes, so a search for the fastest must not count on it.
TEST_F(FamilySearchTest, PairsThatNobodyMeasured_AreTakenOnlyByName) {
  const PredictPlan predict = [this](const PlanChoice& choice) {
    auto prediction = Predict(choice);
    prediction->guesses_pairs = absl::StrContains(choice.schedule.name, "dualpipe");
    return prediction;
  };
  const auto has_pairs = [](const absl::StatusOr<FamilySearchResult>& found) {
    return std::any_of(found->best.begin(), found->best.end(),
                       [](const auto& best) { return best.prediction.guesses_pairs; });
  };
  const auto all = SearchFamilies(options_, predict);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_FALSE(all->best.empty());
  EXPECT_FALSE(has_pairs(all));
  options_.schedule = "dualpipe";
  const auto named = SearchFamilies(options_, predict);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_TRUE(has_pairs(named));
}

TEST_F(FamilySearchTest, UnknownOrUnfitSchedule_IsRefused) {
  options_.schedule = "1f1c";
  EXPECT_FALSE(SearchFamilies(options_, [this](const PlanChoice& c) { return Predict(c); }).ok());
  options_.schedule = "lpp,groups=3,ranks=3";
  const auto refused = SearchFamilies(options_, [this](const PlanChoice& c) { return Predict(c); });
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("lpp,groups=3,ranks=3 "));
}

TEST_F(FamilySearchTest, Stopped_SaysSo) {
  options_.stop = [] { return true; };
  EXPECT_TRUE(Search().stopped);
}

}  // namespace
}  // namespace weft::family_search_test
