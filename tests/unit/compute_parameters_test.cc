#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "run/model_layers.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/compute/sum_of_squares.h"

namespace weft::compute_parameters_test {
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

// Slots stay in the order of layers; in the buffer the statistics come behind all that is trained.
TEST(Parameters, Layout_PutsStatisticsLast) {
  ResNetSpec model;
  RunSpec run;
  run.model = model;
  run.layers_of_stage = {3, 7};
  const StageLayout layout = LayOutStage(run, 0);
  ASSERT_LT(layout.statistics_begin, layout.elements);
  std::vector<bool> taken(layout.elements);
  int layer = 0;
  for (const ParameterSlot& slot : layout.slots) {
    EXPECT_GE(slot.layer, layer);
    layer = slot.layer;
    const bool statistic = slot.parameter.kind == ParameterSpec::Kind::kStatistic;
    EXPECT_EQ(slot.offset >= layout.statistics_begin, statistic) << slot.parameter.name;
    EXPECT_EQ(slot.offset % StageLayout::kAlignElements, 0);
    for (int64_t i = slot.offset; i < slot.offset + slot.parameter.elements(); ++i) {
      ASSERT_FALSE(taken[i]) << slot.parameter.name;
      taken[i] = true;
    }
  }
  EXPECT_EQ(LayOutStage(SmallRun(), 0).statistics_begin, LayOutStage(SmallRun(), 0).elements);
}

// Parameters without decay lie behind those with decay; slots stay in the order of layers.
TEST(Parameters, Layout_PutsWhatDoesNotDecayBehindWhatDoes) {
  RunSpec run = SmallRun();
  const int64_t elements = LayOutStage(run, 1).elements;
  AdamWSpec adamw;
  adamw.no_decay = {"*.bias", "*norm?.weight"};
  run.train.optimizer = adamw;
  const StageLayout layout = LayOutStage(run, 1);
  EXPECT_EQ(layout.elements, elements);
  EXPECT_EQ(layout.statistics_begin, layout.elements);
  int decaying = 0, others = 0;
  for (const ParameterSlot& slot : layout.slots) {
    const std::string name = NameInModel(slot.layer_name, slot.parameter);
    const bool norm = name.find("norm") != std::string::npos, bias = absl::EndsWith(name, ".bias");
    EXPECT_EQ(slot.decays, !norm && !bias) << name;
    EXPECT_EQ(slot.offset < layout.no_decay_begin, slot.decays) << name;
    ++(slot.decays ? decaying : others);
  }
  EXPECT_GT(decaying, 0);
  EXPECT_GT(others, 0);
  EXPECT_EQ(LayOutStage(SmallRun(), 1).no_decay_begin, elements);
}

// However a buffer is cut, what does not decay is updated as without a decay, and the rest as with it.
TEST(StageUpdate, SlicesOfABufferWithGroups_DecayTheFirstAlone) {
  RunSpec run = SmallRun();
  AdamWSpec adamw;
  adamw.weight_decay = 0.5;
  adamw.no_decay = {"*.bias"};
  run.train.optimizer = adamw;
  const StageLayout layout = LayOutStage(run, 1);
  AdamWSpec without = adamw;
  without.weight_decay = 0;
  std::vector<float> weights(layout.elements), gradient(layout.elements);
  for (int64_t i = 0; i < layout.elements; ++i) {
    weights[i] = 1.0f + 0.37f * static_cast<float>(i % 11);
    gradient[i] = 0.1f * static_cast<float>(i % 7) - 0.2f;
  }
  const auto updated = [&](const AdamWSpec& spec, int parts, bool whole) {
    Optimizer optimizer(spec);
    optimizer.Begin(spec.lr);
    std::vector<float> out = weights, first(layout.elements, 0), second(layout.elements, 0);
    for (int part = 0; part < parts; ++part) {
      const SliceBounds bounds = SliceOf(layout.elements, part, parts);
      const int64_t n = bounds.end - bounds.begin;
      float* const at = out.data() + bounds.begin;
      const Optimizer::State state = {first.data() + bounds.begin, second.data() + bounds.begin};
      if (whole) {
        optimizer.Apply(HostMath(), at, at, gradient.data() + bounds.begin, state, nullptr, n);
      } else {
        UpdateRange(HostMath(), optimizer, layout, 1, bounds.begin, n, at, at, gradient.data() + bounds.begin,
                    state, nullptr);
      }
    }
    return out;
  };
  const std::vector<float> decayed = updated(adamw, 1, true), kept = updated(without, 1, true);
  ASSERT_NE(decayed, kept);
  ASSERT_LT(layout.no_decay_begin, layout.statistics_begin);
  std::vector<float> expected = kept;
  std::copy_n(decayed.begin(), layout.no_decay_begin, expected.begin());
  for (const int parts : {1, 2, 5}) EXPECT_EQ(updated(adamw, parts, false), expected) << parts << " parts";
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
  ResNetSpec resnet50;
  resnet50.depth = 50;
  for (const ModelSpec& model : {ModelSpec(std::get<GptSpec>(SmallRun().model)), ModelSpec(MlpSpec{}),
                                 ModelSpec(ResNetSpec{}), ModelSpec(resnet50), ModelSpec(VitSpec{})}) {
    const std::vector<LayerSpec> layers = DescribeLayers(model);
    const std::vector<LayerCount> counts = CountLayers(model);
    ASSERT_EQ(layers.size(), counts.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      int64_t trained = 0, statistics = 0;
      for (const ParameterSpec& p : layers[l].parameters) {
        (p.kind == ParameterSpec::Kind::kTrained ? trained : statistics) += p.elements();
      }
      EXPECT_EQ(layers[l].name, counts[l].name);
      EXPECT_EQ(trained, counts[l].parameters);
      EXPECT_EQ(statistics, counts[l].statistics);
    }
  }
}

// Every way to cut a buffer with statistics into slices updates it to the same bits: averages where
// statistics lie, the optimizer's step elsewhere.
TEST(StageUpdate, SlicesOfABufferWithStatistics_AverageThemAndTrainTheRest) {
  ResNetSpec model;
  model.width = 3;
  RunSpec run;
  run.model = model;
  run.layers_of_stage = {2, 8};
  const StageLayout layout = LayOutStage(run, 0);
  constexpr int kMicrobatches = 4;
  std::vector<float> weights(layout.elements), gradient(layout.elements);
  for (int64_t i = 0; i < layout.elements; ++i) {
    weights[i] = 1.0f + 0.37f * static_cast<float>(i % 11);
    gradient[i] = 0.1f * static_cast<float>(i % 7) - 0.2f;
  }
  SgdSpec sgd;
  sgd.lr = 0.5;
  sgd.momentum = 0.9;
  sgd.weight_decay = 0.25;
  std::vector<float> expected(layout.elements);
  for (int64_t i = 0; i < layout.elements; ++i) {
    expected[i] = weights[i] - 0.5f * (gradient[i] * 0.5f + 0.25f * weights[i]);
  }
  int64_t statistics = 0;
  for (const ParameterSlot& slot : layout.slots) {
    if (slot.parameter.kind != ParameterSpec::Kind::kStatistic) continue;
    statistics += slot.parameter.elements();
  }
  for (int64_t i = layout.statistics_begin; i < layout.elements; ++i) {
    const float kept = weights[i] * 0.9f, moved = gradient[i] / kMicrobatches * 0.1f;
    expected[i] = kept + moved;
  }
  EXPECT_EQ(statistics, 2 * 3 * 3);
  // A norm is of what is trained, however it is cut.
  SumOfSquares trained;
  for (const ParameterSlot& slot : layout.slots) {
    if (slot.parameter.kind == ParameterSpec::Kind::kTrained) {
      ASSERT_TRUE(trained.Add(gradient.data() + slot.offset, slot.parameter.elements()));
    }
  }
  // Between parameters a sum is zero.
  std::vector<float> padded(layout.elements, 0);
  for (const ParameterSlot& slot : layout.slots) {
    std::copy_n(gradient.begin() + slot.offset, slot.parameter.elements(), padded.begin() + slot.offset);
  }
  for (const int parts : {1, 3}) {
    std::array<uint64_t, SumOfSquares::kLimbs> limbs{};
    for (int part = 0; part < parts; ++part) {
      const SliceBounds bounds = SliceOf(layout.elements, part, parts);
      AddSquares(HostMath(), layout, bounds.begin, bounds.end - bounds.begin, padded.data() + bounds.begin,
                 limbs.data());
    }
    EXPECT_EQ(SumOfSquares::FromLimbs(limbs.data()), trained) << parts << " parts";
  }
  for (const int parts : {1, 2, 5}) {
    Optimizer optimizer(sgd);
    optimizer.Begin(sgd.lr);
    const float half = 0.5f;
    std::vector<float> out = weights, momentum(layout.elements, 0);  // in place
    for (int part = 0; part < parts; ++part) {
      const SliceBounds bounds = SliceOf(layout.elements, part, parts);
      UpdateRange(HostMath(), optimizer, layout, kMicrobatches, bounds.begin, bounds.end - bounds.begin,
                  out.data() + bounds.begin, out.data() + bounds.begin, gradient.data() + bounds.begin,
                  {momentum.data() + bounds.begin, nullptr}, &half);
    }
    EXPECT_EQ(out, expected) << parts << " parts";
    for (const ParameterSlot& slot : layout.slots) {
      const bool trained = slot.parameter.kind == ParameterSpec::Kind::kTrained;
      EXPECT_EQ(momentum[slot.offset + 1] != 0, trained) << slot.parameter.name;
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
}  // namespace weft::compute_parameters_test
