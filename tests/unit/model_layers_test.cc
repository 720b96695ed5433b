#include "run/model_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "run/stage_cut.h"

namespace weft::model_layers_test {
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
  std::function<void(std::vector<int>, int)> extend = [&](std::vector<int> sizes, int remaining) {
    if (static_cast<int>(sizes.size()) + 1 == stages) {
      sizes.push_back(remaining);
      best = std::min(best, LargestPart(flops, sizes));
      return;
    }
    for (int n = 1; n < remaining; ++n) {
      std::vector<int> longer = sizes;
      longer.push_back(n);
      extend(longer, remaining - n);
    }
  };
  extend({}, static_cast<int>(flops.size()));
  return best;
}

std::vector<int64_t> Kept(const ModelSpec& model, int samples, Precision precision = Precision::kFloat32) {
  const std::vector<LayerCount> layers = CountLayers(model, precision);
  std::vector<int64_t> bytes;
  for (int l = 0; l < static_cast<int>(layers.size()); ++l)
    bytes.push_back(KeptTensorBytes(layers, l, l + 1, samples));
  return bytes;
}

// The figures are `activation_bytes` of `weft profile` on a CPU, under LibTorch 2.
TEST(KeptTensorBytes, OfEveryKindOfLayer_AreThoseThatRunsHaveMeasured) {
  using Bytes = std::vector<int64_t>;
  const GptSpec gpt{.layers = 1, .width = 48, .heads = 3, .context = 20};
  EXPECT_EQ(Kept(gpt, 1), (Bytes{4032, 62208, 24832}));
  EXPECT_EQ(Kept(gpt, 3), (Bytes{12032, 186112, 74048}));
  EXPECT_EQ(Kept(gpt, 3, Precision::kBFloat16), (Bytes{6272, 93440, 68032}));
  EXPECT_EQ(Kept(GptSpec{.layers = 1, .width = 36, .heads = 2, .context = 7}, 3),
            (Bytes{3264, 49344, 25088}));
  const VitSpec vit{
      .layers = 1, .width = 20, .heads = 2, .patch = 4, .classes = 10, .channels = 1, .size = 12};
  EXPECT_EQ(Kept(vit, 1), (Bytes{1408, 13376, 448}));
  EXPECT_EQ(Kept(vit, 3), (Bytes{4160, 39360, 640}));
  EXPECT_EQ(Kept(vit, 3, Precision::kBFloat16), (Bytes{2112, 19840, 512}));
  MlpSpec mlp{.layers = 3, .width = 50, .inputs = 144};
  EXPECT_EQ(Kept(mlp, 1), (Bytes{1088, 512, 192}));
  EXPECT_EQ(Kept(mlp, 3), (Bytes{3008, 1280, 256}));
  EXPECT_EQ(Kept(mlp, 3, Precision::kBFloat16), (Bytes{1536, 640, 256}));
  mlp.gelu_apart = true;
  EXPECT_EQ(Kept(mlp, 3, Precision::kBFloat16), (Bytes{1216, 320, 320, 320, 256}));
  const TwoTowerSpec towers{.layers = 2, .width = 50, .inputs = 144};
  EXPECT_EQ(Kept(towers, 1), (Bytes{1088, 512, 1088, 512, 192})) << "of one sample the whole data are kept";
  EXPECT_EQ(Kept(towers, 3), (Bytes{2176, 1280, 2176, 1280, 256}));
  EXPECT_EQ(Kept(towers, 1, Precision::kBFloat16), (Bytes{576, 256, 576, 256, 192}));
  EXPECT_EQ(Kept(towers, 3, Precision::kBFloat16), (Bytes{1088, 640, 1088, 640, 256}));
  const ResNetSpec resnet{.depth = 18, .width = 6, .channels = 1, .size = 12};
  EXPECT_EQ(Kept(resnet, 1), (Bytes{7744, 14336, 14336, 9408, 7424, 6016, 4608, 6144, 4608, 384}));
  EXPECT_EQ(Kept(resnet, 3), (Bytes{22720, 41984, 41984, 26688, 21248, 14656, 11520, 13824, 10752, 832}));
  EXPECT_EQ(Kept(resnet, 3, Precision::kBFloat16),
            (Bytes{11520, 21248, 21248, 13888, 11008, 8256, 6400, 8064, 6144, 576}));
  const ResNetSpec pooled{
      .depth = 50, .width = 4, .channels = 1, .size = 12, .stem = ResNetSpec::Stem::kImageNet};
  EXPECT_EQ(Kept(pooled, 3), (Bytes{6784, 8000, 6016, 6016, 8704, 5632, 5632, 5632, 6784, 3840, 3840, 3840,
                                    3840, 3840, 11264, 7680, 7680, 1792}));
}

// Both towers read one sample in place, and keep it once.
TEST(KeptTensorBytes, OfTwoTowersOnOneStage_HaveTheDataOfASampleOnce) {
  const std::vector<LayerCount> layers = CountLayers(TwoTowerSpec{.layers = 1, .width = 50, .inputs = 144});
  EXPECT_EQ(KeptTensorBytes(layers, 0, 2, 1), 576 + 2 * 512);
  EXPECT_EQ(KeptTensorBytes(layers, 0, 2, 3), 2 * (896 + 1280));
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
  EXPECT_EQ(layers.back().output.elements(1), 0);
  int64_t parameters = 0;
  for (const LayerCount& l : layers) parameters += l.parameters;
  // GPT-2 small has 124,439,808 with the head tied to the token embedding; here it is a matrix of its own.
  EXPECT_EQ(parameters, 124439808 + int64_t{50257} * 768);
  EXPECT_EQ(layers[1].parameters, 7087872);
  EXPECT_EQ(layers[1].output.elements(1), 1024 * 768);
}

// The sizes are as published, with a head of its own in place of one tied to the token embedding.
TEST(CountLayers_Gpt, EveryPreset_CountsOfItsPublication) {
  struct Known {
    const char* preset;
    int64_t published, width;
  };
  for (const Known& known : {Known{"gpt2", 124439808, 768}, Known{"gpt2_medium", 354823168, 1024},
                             Known{"gpt2_large", 774030080, 1280}, Known{"gpt2_xl", 1557611200, 1600}}) {
    SCOPED_TRACE(known.preset);
    absl::Status status;
    const ModelSpec model = ReadModel({{"gpt", {{"preset", known.preset}}}}, "model", status);
    ASSERT_TRUE(status.ok()) << status;
    int64_t parameters = 0;
    for (const LayerCount& l : CountLayers(model)) parameters += l.parameters;
    EXPECT_EQ(parameters, known.published + 50257 * known.width);
  }
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
  EXPECT_EQ(layers[1].output.elements(1), 5);
  EXPECT_EQ(layers[2].parameters, 5 * 2 + 2);
  EXPECT_EQ(layers[2].output.elements(1), 0);
}

int64_t Parameters(const std::vector<LayerCount>& layers) {
  int64_t sum = 0;
  for (const LayerCount& l : layers) sum += l.parameters;
  return sum;
}
// Multiply-adds of a sample, in thousands of millions.
double GigaMultiplyAdds(const std::vector<LayerCount>& layers) {
  double sum = 0;
  for (const LayerCount& l : layers) sum += l.forward_flops;
  return sum / 2e9;
}
ResNetSpec OfImageNet(int depth) {
  ResNetSpec model;
  model.depth = depth;
  model.classes = 1000;
  model.size = 224;
  model.stem = ResNetSpec::Stem::kImageNet;
  return model;
}

// Parameters and operations as torchvision lists them.
TEST(CountLayers_ResNet, OfImageNet_CountsOfTheirPublication) {
  struct Known {
    int depth;
    size_t layers;
    int64_t parameters;
    double giga_multiply_adds;
    int64_t norm_channels;
  };
  for (const Known& known : {Known{18, 10, 11689512, 1.814, 4800}, Known{34, 18, 21797672, 3.664, 8512},
                             Known{50, 18, 25557032, 4.089, 26560}}) {
    SCOPED_TRACE(known.depth);
    const std::vector<LayerCount> layers = CountLayers(OfImageNet(known.depth));
    ASSERT_EQ(layers.size(), known.layers);
    EXPECT_EQ(Parameters(layers), known.parameters);
    EXPECT_NEAR(GigaMultiplyAdds(layers), known.giga_multiply_adds, 0.001);
    int64_t statistics = 0;
    for (const LayerCount& l : layers) statistics += l.statistics;
    EXPECT_EQ(statistics, 2 * known.norm_channels);
    EXPECT_EQ(layers.front().name, "stem");
    EXPECT_EQ(layers.front().output.sizes, (std::vector<int64_t>{64, 56, 56}));
    EXPECT_EQ(layers[known.layers - 2].output.sizes,
              (std::vector<int64_t>{known.depth == 50 ? 2048 : 512, 7, 7}));
    EXPECT_EQ(layers.back().name, "head");
    EXPECT_TRUE(layers.back().output.sizes.empty());
  }
}

TEST(CountLayers_ResNet, OfCifar_KeepsTheImagesSizeInItsStem) {
  const std::vector<LayerCount> layers = CountLayers(ResNetSpec());
  EXPECT_EQ(layers.front().output.sizes, (std::vector<int64_t>{64, 32, 32}));
  EXPECT_EQ(layers[8].output.sizes, (std::vector<int64_t>{512, 4, 4}));
  EXPECT_EQ(Parameters(layers), 11173962);  // as the usual variant for CIFAR-10
  const std::vector<int> cut = CutStages(layers, 4);
  EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), 0), 10);
}

TEST(CountLayers_Vit, B16_CountsOfItsPublication) {
  const std::vector<LayerCount> layers = CountLayers(VitSpec());
  ASSERT_EQ(layers.size(), 14u);
  EXPECT_EQ(Parameters(layers), 86567656);
  EXPECT_NEAR(GigaMultiplyAdds(layers), 17.564, 0.02);
  EXPECT_EQ(layers.front().output.sizes, (std::vector<int64_t>{197, 768}));
  EXPECT_EQ(layers[1].name, "block0");
}

TEST(CountLayers_Mlp, GeluApart_IsALayerWithoutParametersAndTheSumsAreTheSame) {
  MlpSpec fused;
  fused.dropout = 0.1;
  MlpSpec separate = fused;
  separate.gelu_apart = true;
  const std::vector<LayerCount> whole = CountLayers(fused), split = CountLayers(separate);
  ASSERT_EQ(split.size(), 2 * whole.size() - 1);
  for (size_t i = 0; i + 1 < whole.size(); ++i) {
    const LayerCount &linear = split[2 * i], &gelu = split[2 * i + 1];
    EXPECT_EQ(gelu.name, "gelu" + std::to_string(i));
    EXPECT_EQ(gelu.inputs, std::vector<int>{static_cast<int>(2 * i)});
    EXPECT_EQ(gelu.parameters, 0);
    EXPECT_EQ(linear.parameters, whole[i].parameters);
    EXPECT_EQ(gelu.output.sizes, whole[i].output.sizes);
    EXPECT_EQ(KeptTensorBytes({linear, gelu}, 0, 2, 4), KeptTensorBytes({whole[i]}, 0, 1, 4));
  }
  EXPECT_EQ(split.back().inputs, std::vector<int>{static_cast<int>(split.size()) - 2});
}

// stem0, left0, left1, right0, right1, head
TwoTowerSpec Towers(int stem) {
  TwoTowerSpec model;
  model.stem = stem;
  model.layers = 2;
  model.width = 8;
  model.inputs = 20;
  model.classes = 3;
  return model;
}

TEST(CountLayers_TwoTower, Layers_ReadTheirTowerAndTheHeadBoth) {
  const std::vector<LayerCount> layers = CountLayers(Towers(1));
  ASSERT_EQ(layers.size(), 6u);
  EXPECT_EQ(layers[3].name, "right0");
  EXPECT_EQ(layers[3].inputs, std::vector<int>{0});
  EXPECT_EQ(layers[5].inputs, (std::vector<int>{2, 4}));
  EXPECT_EQ(layers[5].parameters, 2 * 8 * 3 + 3);
  const std::vector<LayerCount> halves = CountLayers(Towers(0));
  ASSERT_EQ(halves.size(), 5u);
  EXPECT_TRUE(halves[0].inputs.empty() && halves[2].inputs.empty());
  EXPECT_EQ(halves[2].parameters, 10 * 8 + 8);
}

TEST(StageInputs, CutsOfTwoTowers_NameTheStagesThatAreRead) {
  const std::vector<LayerCount> layers = CountLayers(Towers(1));
  using Inputs = std::vector<std::vector<int>>;
  EXPECT_EQ(StageInputs(layers, {1, 2, 2, 1}), (Inputs{{}, {0}, {0}, {1, 2}}));
  EXPECT_EQ(StageInputs(layers, {1, 2, 3}), (Inputs{{}, {0}, {0, 1}}));
  EXPECT_EQ(StageInputs(layers, {1, 5}), Inputs{}) << "a chain";
  EXPECT_EQ(StageInputs(CountLayers(MlpSpec()), {1, 2}), Inputs{});
}

TEST(CheckCut, StageThatOthersReadInItsMiddle_IsNamedWithTheLayers) {
  const std::vector<LayerCount> layers = CountLayers(Towers(1));
  EXPECT_TRUE(CheckCut(layers, {1, 2, 2, 1}).ok());
  EXPECT_EQ(CheckCut(layers, {2, 4}).message(),
            "stage 0 ends with layer left0, and right0 of a later stage reads stem0 in its middle; cut so "
            "that other stages read only the last layer of a stage");
  EXPECT_FALSE(CheckCut(layers, {1, 3, 2}).ok());
}

TEST(CutStages, ModelThatIsNoChain_IsCutSoundlyIntoAnyNumber) {
  for (int stem : {0, 1, 2}) {
    const std::vector<LayerCount> layers = CountLayers(Towers(stem));
    for (int stages = 1; stages <= static_cast<int>(layers.size()); ++stages) {
      const std::vector<int> cut = CutStages(layers, stages);
      ASSERT_EQ(static_cast<int>(cut.size()), stages);
      EXPECT_TRUE(CheckCut(layers, cut).ok()) << CheckCut(layers, cut);
    }
  }
}

TEST(CutBesideTied, EveryCountOfStages_IsSoundAndHasNoPlacedStageOfTiedParametersAlone) {
  GptSpec model;
  model.layers = 4;
  model.tied = true;
  const std::vector<LayerCount> layers = CountLayers(model);
  EXPECT_EQ(TiedLayers(layers), 1);
  ASSERT_EQ(MostStages(layers), 6);
  for (int stages = 1; stages <= 6; ++stages) {
    const StageCut cut = CutBesideTied(layers, stages);
    EXPECT_EQ(cut.tied_stages, stages == 1 ? 0 : 1);
    EXPECT_EQ(static_cast<int>(cut.layers_of_stage.size()) - cut.tied_stages, stages);
    EXPECT_TRUE(CheckCut(layers, cut.layers_of_stage).ok()) << CheckCut(layers, cut.layers_of_stage);
    const StageCut again = WithTiedStages(layers, cut.AsWritten());
    EXPECT_EQ(again.layers_of_stage, cut.layers_of_stage);
    EXPECT_EQ(again.tied_stages, cut.tied_stages);
  }
  EXPECT_EQ(WithTiedStages(layers, {1, 3, 3}).tied_stages, 0) << "a stage of its own, as asked";
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

GptSpec Gpt2() {
  GptSpec model;
  model.layers = 12;
  model.width = 768;
  model.heads = 12;
  model.context = 1024;
  model.vocabulary = 50257;
  return model;
}

// A run that is resumed with `stages: N` finds the cut of its checkpoint.
TEST(CutStages, Gpt2_IsCutAsItAlwaysWas) {
  const std::vector<LayerCount> layers = CountLayers(Gpt2());
  EXPECT_EQ(CutStages(layers, 6), (std::vector<int>{1, 1, 3, 4, 4, 1}));
  for (int stages = 1; stages <= MostStages(layers); ++stages)
    EXPECT_EQ(CutBesideTied(layers, stages).layers_of_stage, CutStages(layers, stages)) << stages;
}

// Returns every way to cut so many layers into so many parts, the one that cuts early first.
std::vector<std::vector<int>> AllCuts(int layers, int stages) {
  if (stages == 1) return {{layers}};
  std::vector<std::vector<int>> cuts;
  for (int first = 1; first + stages - 1 <= layers; ++first) {
    for (std::vector<int>& rest : AllCuts(layers - first, stages - 1)) {
      rest.insert(rest.begin(), first);
      cuts.push_back(std::move(rest));
    }
  }
  return cuts;
}

double SumOfSquares(const std::vector<double>& flops, const std::vector<int>& sizes) {
  double sum = 0;
  auto next = flops.begin();
  for (const int size : sizes) {
    const double part = std::accumulate(next, next + size, 0.0);
    sum += part * part;
    next += size;
  }
  return sum;
}

// Returns the layers, the last of which reads a tied parameter in front of them.
std::vector<LayerCount> BehindTied(const std::vector<double>& flops) {
  std::vector<LayerCount> layers = WithFlops(flops);
  for (LayerCount& layer : layers) {
    layer.output.sizes = {4};
    for (int& input : layer.inputs) ++input;
  }
  layers.back().inputs.insert(layers.back().inputs.begin(), 0);
  LayerCount tied;
  tied.output.sizes = {4};
  tied.output.by_sample = false;
  layers.insert(layers.begin(), tied);
  return layers;
}

// The last layer of some is as large as any part may be, so the first part may be anything: it is no layer
// alone that does nothing.
TEST(CutBesideTied, EveryCountOfStages_IsTheMostEvenOfTheBestOfAllCuts) {
  for (const std::vector<double>& flops : std::vector<std::vector<double>>{
           {0, 10, 10, 100}, {100, 10, 0, 10}, {1, 6, 2, 2, 9, 1, 1, 3, 4}, {0, 2, 2, 2, 2, 2, 2, 7}}) {
    const int count = static_cast<int>(flops.size());
    const std::vector<LayerCount> layers = BehindTied(flops);
    ASSERT_EQ(TiedLayers(layers), 1);
    for (int stages = 2; stages <= count; ++stages) {
      std::vector<int> best;
      for (const std::vector<int>& cut : AllCuts(count, stages)) {
        const auto cost = [&](const std::vector<int>& of) {
          return std::pair(LargestPart(flops, of), SumOfSquares(flops, of));
        };
        if (best.empty() || cost(cut) < cost(best)) best = cut;
      }
      best.insert(best.begin(), 1);
      EXPECT_EQ(CutBesideTied(layers, stages).layers_of_stage, best) << stages;
    }
  }
}

TEST(CutBesideTied, Gpt2_HasNoPlacedStageOfItsEmbeddingAlone) {
  GptSpec model = Gpt2();
  model.tied = true;
  for (const int stages : {3, 4, 6, 8})
    EXPECT_GT(CutBesideTied(CountLayers(model), stages).layers_of_stage[1], 1) << stages;
}

TEST(CutStages, EquallyGoodCuts_TakesTheEarliest) {
  EXPECT_EQ(CutStages(WithFlops({1, 1, 1}), 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(CutStages(WithFlops({2, 2, 2, 2}), 2), (std::vector<int>{2, 2}));
}

}  // namespace
}  // namespace weft::model_layers_test
