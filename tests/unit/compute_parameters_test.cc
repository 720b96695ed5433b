#include <gtest/gtest.h>

#include <set>
#include <string>

#include "proto/run/model_layers.h"
#include "worker/shell/compute/parameters.h"

namespace weft {
namespace {

RunSpec SmallRun() {
  GptSpec model;
  model.layers = 2;
  model.width = 20;
  RunSpec run;
  run.model = model;
  run.layers_of_stage = {1, 2, 1};
  return run;
}

TEST(Parameters, Layout_AlignsEachAndCountsAll) {
  const RunSpec run = SmallRun();
  for (int stage = 0; stage < run.stages(); ++stage) {
    const StageLayout layout = LayOutStage(run, stage);
    int64_t end = 0;
    for (const ParameterSlot& slot : layout.slots) {
      EXPECT_EQ(slot.offset % StageLayout::kAlignElements, 0);
      EXPECT_GE(slot.offset, end);
      EXPECT_LT(slot.offset - end, StageLayout::kAlignElements);
      end = slot.offset + slot.parameter.elements();
    }
    EXPECT_GE(layout.elements, end);
    EXPECT_EQ(layout.elements % StageLayout::kAlignElements, 0);
  }
}

TEST(Parameters, Names_AreThoseOfTheCheckpoint) {
  const StageLayout layout = LayOutStage(SmallRun(), 1);
  std::set<std::string> names;
  for (const ParameterSlot& slot : layout.slots) names.insert(CheckpointName(1, slot));
  EXPECT_EQ(names.size(), 24u);
  EXPECT_EQ(names.count("stage01.block0.attention.qkv.weight"), 1u);
  EXPECT_EQ(names.count("stage01.block1.mlp.contract.bias"), 1u);
}

TEST(Parameters, Layers_AreThoseOfTheCountedChain) {
  for (const ModelSpec& model : {ModelSpec(std::get<GptSpec>(SmallRun().model)), ModelSpec(MlpSpec{})}) {
    const std::vector<LayerSpec> layers = DescribeLayers(model);
    const std::vector<LayerCount> counts = CountLayers(model);
    ASSERT_EQ(layers.size(), counts.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      int64_t elements = 0;
      for (const ParameterSpec& p : layers[l].parameters) elements += p.elements();
      EXPECT_EQ(layers[l].name, counts[l].name);
      EXPECT_EQ(elements, counts[l].parameters);
    }
  }
}

TEST(Parameters, Seeds_DifferInEveryArgumentAndStayTheSame) {
  std::set<uint64_t> seeds;
  for (uint64_t seed : {1, 2}) {
    for (int layer : {0, 1}) {
      for (const char* name : {"weight", "bias"}) seeds.insert(ParameterSeed(seed, layer, name));
      for (int step : {0, 1}) {
        for (int b : {0, 1}) {
          for (int site : {0, 1}) seeds.insert(MaskSeed(seed, step, b, layer, site));
        }
      }
    }
  }
  EXPECT_EQ(seeds.size(), 8u + 32u);
  // Fixed: a change would give old runs other numbers.
  EXPECT_EQ(ParameterSeed(1, 2, "weight"), 14793465344637419571u);
  EXPECT_EQ(MaskSeed(1, 2, 3, 4, 5), 77742306446836058u);
}

}  // namespace
}  // namespace weft
