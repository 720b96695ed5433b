#include "proto/run/model_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace weft {
namespace {

std::vector<LayerCount> WithFlops(const std::vector<double>& flops) {
  std::vector<LayerCount> layers(flops.size());
  for (size_t i = 0; i < flops.size(); ++i) layers[i].forward_flops = flops[i];
  return layers;
}

double LargestPart(const std::vector<double>& flops, const std::vector<int>& sizes) {
  double largest = 0;
  size_t at = 0;
  for (int n : sizes) {
    largest = std::max(largest, std::accumulate(flops.begin() + at, flops.begin() + at + n, 0.0));
    at += n;
  }
  return largest;
}

// The least largest part over all cuts, by trying each.
double BestByTrying(const std::vector<double>& flops, int stages) {
  double best = 1e300;
  std::function<void(std::vector<int>, int)> extend = [&](std::vector<int> sizes, int left) {
    if (static_cast<int>(sizes.size()) + 1 == stages) {
      sizes.push_back(left);
      best = std::min(best, LargestPart(flops, sizes));
      return;
    }
    for (int n = 1; n < left; ++n) {
      std::vector<int> longer = sizes;
      longer.push_back(n);
      extend(longer, left - n);
    }
  };
  extend({}, static_cast<int>(flops.size()));
  return best;
}

TEST(CountLayers_Gpt, KnownModel_CountsOfItsPublication) {
  GptSpec gpt2;
  gpt2.layers = 12;
  gpt2.width = 768;
  gpt2.heads = 12;
  gpt2.context = 1024;
  gpt2.vocabulary = 50257;
  const std::vector<LayerCount> layers = CountLayers(gpt2);
  ASSERT_EQ(layers.size(), 14u);
  EXPECT_EQ(layers.front().name, "embedding");
  EXPECT_EQ(layers[1].name, "block0");
  EXPECT_EQ(layers.back().name, "head");
  EXPECT_EQ(layers.back().output_elements(), 0);
  int64_t parameters = 0;
  for (const LayerCount& l : layers) parameters += l.parameters;
  // GPT-2 small has 124,439,808 with the head tied to the token embedding; here it is a matrix of its own.
  EXPECT_EQ(parameters, 124439808 + int64_t{50257} * 768);
  EXPECT_EQ(layers[1].parameters, 7087872);
  EXPECT_EQ(layers[1].output_elements(), 1024 * 768);
}

TEST(CountLayers_Mlp, SizesOfItsEnds_AreInputsAndClasses) {
  MlpSpec mlp;
  mlp.layers = 3;
  mlp.width = 5;
  mlp.inputs = 7;
  mlp.classes = 2;
  const std::vector<LayerCount> layers = CountLayers(mlp);
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].parameters, 7 * 5 + 5);
  EXPECT_EQ(layers[0].forward_flops, 2 * 7 * 5);
  EXPECT_EQ(layers[1].parameters, 5 * 5 + 5);
  EXPECT_EQ(layers[1].output_elements(), 5);
  EXPECT_EQ(layers[2].parameters, 5 * 2 + 2);
  EXPECT_EQ(layers[2].output_elements(), 0);
}

TEST(CutStages, EveryCountOfStages_IsTheBestOfAllCuts) {
  const std::vector<double> flops = {1, 6, 2, 2, 9, 1, 1, 3, 4};
  for (int stages = 1; stages <= static_cast<int>(flops.size()); ++stages) {
    const std::vector<int> sizes = CutStages(WithFlops(flops), stages);
    ASSERT_EQ(static_cast<int>(sizes.size()), stages);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), 9);
    EXPECT_GE(*std::min_element(sizes.begin(), sizes.end()), 1);
    EXPECT_EQ(LargestPart(flops, sizes), BestByTrying(flops, stages)) << stages << " stages";
  }
}

TEST(CutStages, EquallyGoodCuts_TakesTheEarliest) {
  EXPECT_EQ(CutStages(WithFlops({1, 1, 1}), 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(CutStages(WithFlops({2, 2, 2, 2}), 2), (std::vector<int>{2, 2}));
}

}  // namespace
}  // namespace weft
