#include "worker/shell/reference/token_sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::token_sampler_test {
namespace {

using ::testing::HasSubstr;

std::vector<int> Draw(const SamplingOptions& options, const std::vector<float>& scores, int count) {
  TokenSampler sampler(options);
  std::vector<int> drawn;
  for (int i = 0; i < count; ++i) {
    const auto token = sampler.Next(scores);
    EXPECT_TRUE(token.ok()) << token.status();
    drawn.push_back(token.value_or(-1));
  }
  return drawn;
}

TEST(TokenSampler_TemperatureZero, TakesTheHighestScore_TheSmallerTokenOfTwo) {
  EXPECT_EQ(Draw({0, 0, 1}, {1, 3, 2, 3}, 3), (std::vector<int>{1, 1, 1}));
}

TEST(TokenSampler_SameSeed, DrawsTheSame_AnotherSeedOthers) {
  const std::vector<float> scores(50, 0.5F);
  EXPECT_EQ(Draw({1, 0, 7}, scores, 40), Draw({1, 0, 7}, scores, 40));
  EXPECT_NE(Draw({1, 0, 7}, scores, 40), Draw({1, 0, 8}, scores, 40));
}

// The very draws of a seed, so that a text can be had again with another build.
TEST(TokenSampler_KnownSeed, DrawsKnownTokens) {
  const std::vector<float> scores(1000, 0.0F);
  std::mt19937_64 generator(1);
  std::vector<int> expected;
  for (int i = 0; i < 5; ++i)
    expected.push_back(static_cast<int>(std::ldexp(static_cast<double>(generator() >> 11), -53) * 1000));
  EXPECT_EQ(Draw({1, 0, 1}, scores, 5), expected);
}

TEST(TokenSampler_ManyDraws, HaveTheSharesOfTheSoftmax) {
  const std::vector<float> scores = {0, std::log(2.0F), std::log(5.0F)};
  const auto shares = [&](double temperature) {
    std::map<int, double> share;
    for (const int token : Draw({temperature, 0, 3}, scores, 20000)) share[token] += 1.0 / 20000;
    return share;
  };
  auto plain = shares(1);
  EXPECT_NEAR(plain[0], 1.0 / 8, 0.01);
  EXPECT_NEAR(plain[1], 2.0 / 8, 0.01);
  EXPECT_NEAR(plain[2], 5.0 / 8, 0.01);
  auto cold = shares(0.5);  // as squares
  EXPECT_NEAR(cold[0], 1.0 / 30, 0.01);
  EXPECT_NEAR(cold[2], 25.0 / 30, 0.01);
}

TEST(TokenSampler_TopK, DrawsOnlyFromTheHighest) {
  for (const int token : Draw({5, 2, 1}, {1, 4, 2, 3}, 200)) EXPECT_TRUE(token == 1 || token == 3) << token;
  EXPECT_EQ(Draw({1, 9, 2}, {1, 2}, 20), Draw({1, 0, 2}, {1, 2}, 20)) << "more than there are are all";
}

TEST(TokenSampler_LargeScores_SmallTemperature, StayFinite) {
  EXPECT_EQ(Draw({1e-6, 0, 1}, {3e38F, 1e38F, -3e38F}, 3), (std::vector<int>{0, 0, 0}));
}

TEST(TokenSampler_ScoreThatIsNoNumber, IsRefused) {
  TokenSampler sampler({});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto token = sampler.Next({0.0F, nan});
  ASSERT_FALSE(token.ok());
  EXPECT_THAT(std::string(token.status().message()), HasSubstr("score of token 1 is not a finite number"));
}

}  // namespace
}  // namespace weft::token_sampler_test
