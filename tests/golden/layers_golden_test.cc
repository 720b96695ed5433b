// Golden tables of the layers of each built-in model: their parameters and costs, which the module, the
// places in a checkpoint, the cut into stages and the counts of memory all follow from.
//
// A table is a text file under tests/golden/layers. After a wanted change, WEFT_UPDATE_GOLDEN=1 writes them
// anew; read the diff. A change of a parameter's name, size or place makes older checkpoints unreadable.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "run/model_layers.h"

namespace weft::layers_golden_test {
namespace {

struct Case {
  std::string file;
  ModelSpec model;
};

// "normal 0.02" and the like; "float32" for what is read so in every precision.
std::string InitOf(const ParameterSpec& parameter) {
  constexpr const char* kNames[] = {"constant", "normal", "uniform"};
  return absl::StrFormat("%s %.17g%s%s", kNames[static_cast<int>(parameter.init.kind)], parameter.init.value,
                         parameter.kind == ParameterSpec::Kind::kStatistic ? ", statistic" : "",
                         parameter.wide ? ", float32" : "");
}

// One line a layer, with its bytes in float32 and in bf16; then one for each parameter.
std::string TableOf(const ModelSpec& model) {
  const std::vector<LayerSpec> layers = DescribeLayers(model);
  const std::vector<LayerCount> counts = CountLayers(model),
                                narrow = CountLayers(model, Precision::kBFloat16);
  std::string text;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerCount& c = counts[l];
    absl::StrAppendFormat(&text, "%s reads [%s] gives [%s]: %.17g FLOPs, %d parameters, %d statistics",
                          c.name, absl::StrJoin(c.inputs, ", "), absl::StrJoin(c.output.sizes, ", "),
                          c.forward_flops, c.parameters, c.statistics);
    for (const LayerCount* of : {&counts[l], &narrow[l]}) {
      absl::StrAppendFormat(&text, "; keeps %d, of three samples %d, works in %d + %d",
                            KeptTensorBytes({*of}, 0, 1, 1), KeptTensorBytes({*of}, 0, 1, 3), of->work_bytes,
                            of->work_fixed);
    }
    text += "\n";
    for (const ParameterSpec& p : layers[l].parameters) {
      absl::StrAppend(&text, "  ", p.name, " [", absl::StrJoin(p.size, ", "), "] ", InitOf(p), "\n");
    }
  }
  return text;
}

class LayersGolden : public ::testing::TestWithParam<Case> {};

TEST_P(LayersGolden, Model_GivesTheRecordedTable) {
  const std::string path =
      absl::StrCat(std::getenv("WEFT_SOURCE"), "/tests/golden/layers/", GetParam().file, ".txt");
  const std::string actual = TableOf(GetParam().model);
  if (std::getenv("WEFT_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << "table " << path;
}

ModelSpec Mlp(bool gelu_apart) {
  MlpSpec mlp;
  mlp.gelu_apart = gelu_apart;
  return mlp;
}
ModelSpec TwoTower(int stem) {
  TwoTowerSpec towers;
  towers.stem = stem;
  return towers;
}
ModelSpec Gpt() {
  GptSpec gpt;
  gpt.layers = 2;
  return gpt;
}

ModelSpec TiedGpt() {
  GptSpec gpt = std::get<GptSpec>(Gpt());
  gpt.tied = true;
  return gpt;
}
ModelSpec ResNet(int depth, ResNetSpec::Stem stem) {
  ResNetSpec resnet;
  resnet.depth = depth;
  resnet.stem = stem;
  return resnet;
}
ModelSpec Vit() {
  VitSpec vit;
  vit.layers = 2;
  return vit;
}

INSTANTIATE_TEST_SUITE_P(
    Models, LayersGolden,
    ::testing::Values(Case{"mlp", Mlp(false)}, Case{"mlp_gelu_apart", Mlp(true)},
                      Case{"two_tower", TwoTower(0)}, Case{"two_tower_stem", TwoTower(1)}, Case{"gpt", Gpt()},
                      Case{"gpt_tied", TiedGpt()}, Case{"vit", Vit()},
                      Case{"resnet18", ResNet(18, ResNetSpec::Stem::kCifar)},
                      Case{"resnet50_imagenet", ResNet(50, ResNetSpec::Stem::kImageNet)}),
    [](const auto& info) { return info.param.file; });

}  // namespace
}  // namespace weft::layers_golden_test
