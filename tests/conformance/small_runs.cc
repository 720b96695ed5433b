#include "tests/conformance/small_runs.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/exported_model_json.h"
#include "run/model_layers.h"
#include "run/stage_cut.h"

namespace weft::testing {
namespace {

std::vector<int> NearEqual(int layers, int stages) {
  std::vector<int> sizes(stages, layers / stages);
  for (int i = 0; i < layers % stages; ++i) ++sizes[i];
  return sizes;
}

std::string BigEndian(uint32_t value) {
  std::string s;
  for (int shift = 24; shift >= 0; shift -= 8) s.push_back(static_cast<char>((value >> shift) & 255));
  return s;
}

// Images of side x side pixels with labels that can be learned, in IDX files.
IdxData SmallImages(const std::string& folder, int side) {
  constexpr int kCount = 50;
  const auto size = static_cast<uint32_t>(side);
  std::string images = BigEndian(0x803) + BigEndian(kCount) + BigEndian(size) + BigEndian(size);
  std::string labels = BigEndian(0x801) + BigEndian(kCount);
  for (int i = 0; i < kCount; ++i) {
    labels.push_back(static_cast<char>(i * 7 % 10));
    for (int p = 0; p < side * side; ++p)
      images.push_back(static_cast<char>((i * 7 % 10 + p * p) * 37 % 256));
  }
  WriteFile(absl::StrCat(folder, "/images"), images);
  WriteFile(absl::StrCat(folder, "/labels"), labels);
  return {absl::StrCat(folder, "/images"), absl::StrCat(folder, "/labels")};
}

// A run of the model, at small sizes, on images of side x side pixels; not cut yet.
template <typename Model>
RunSpec SmallImageRun(const std::string& name, const std::string& folder, int side, Model model) {
  model.width = 37;
  model.inputs = side * side;
  model.classes = 10;
  RunSpec run;
  run.name = name;
  run.model = model;
  run.data.source = SmallImages(folder, side);
  run.train = {4, 20, 4, 3, Sgd()};
  return run;
}

}  // namespace

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string SmallText(int bytes) {
  const char* words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat. "};
  std::string text;
  for (int i = 0; static_cast<int>(text.size()) < bytes; ++i) text += words[(i * i + i / 5) % 6];
  text.resize(bytes);
  return text;
}

OptimizerSpec Sgd() {
  SgdSpec s;
  s.lr = 0.1;
  s.momentum = 0.9;
  s.weight_decay = 1e-3;
  return s;
}
OptimizerSpec AdamW() {
  AdamWSpec s;
  s.lr = 3e-3;
  return s;
}

RunSpec SmallGptRun(const std::string& folder, int stages) {
  const std::string path = absl::StrCat(folder, "/text.txt");
  WriteFile(path, SmallText(3000));
  GptSpec model;
  model.layers = 2;
  model.width = 24;  // not a multiple of 16: padding and tails of vectors are met
  model.heads = 3;
  model.context = 10;
  model.vocabulary = 256;
  RunSpec run;
  run.name = "small-gpt";
  run.model = model;
  run.data.source = TextData{path};
  run.train = {3, 12, 4, 7, AdamW()};
  run.layers_of_stage = NearEqual(static_cast<int>(CountLayers(run.model).size()), stages);
  return run;
}

RunSpec SmallExportedRun(const std::string& model, int stages) {
  const char* const source = std::getenv("WEFT_SOURCE");
  const std::string path = absl::StrCat(source == nullptr ? "." : source, "/tests/exported/models/", model);
  ExportedSpec exported;
  exported.folder = absl::StrCat(path, ".weft");
  exported.source = std::make_shared<const nlohmann::json>(
      nlohmann::json::parse(ReadFile(exported.folder + "/model.json")));
  auto parsed = ParseExportedModel(*exported.source);
  if (!parsed.ok()) std::abort();
  exported.model = *std::move(parsed);
  ArraysData arrays;
  for (const ExportedField& field : exported.model->fields)
    arrays.paths[field.name] = {absl::StrCat(path, ".", field.name, ".npy")};
  RunSpec run;
  run.name = model;
  run.model = std::move(exported);
  run.data.source = std::move(arrays);
  run.train = {3, 12, 4, 3, AdamW()};
  const StageCut cut = CutBesideTied(CountLayers(run.model), stages);
  run.layers_of_stage = cut.layers_of_stage;
  run.tied_stages = cut.tied_stages;
  return run;
}

RunSpec SmallMlpRun(const std::string& folder, int stages) {
  MlpSpec model;
  model.layers = 5;
  RunSpec run = SmallImageRun("small-mlp", folder, 7, model);
  run.layers_of_stage = NearEqual(model.layers, stages);
  return run;
}

RunSpec SmallResNetRun(const std::string& folder, int stages, int depth) {
  ResNetSpec model;
  model.depth = depth;
  model.width = depth == 50 ? 2 : 4;
  model.channels = 1;
  model.size = depth == 50 ? 22 : 9;
  model.stem = depth == 50 ? ResNetSpec::Stem::kImageNet : ResNetSpec::Stem::kCifar;
  RunSpec run;
  run.name = "small-resnet";
  run.model = model;
  run.data.source = SmallImages(folder, model.size);
  run.train = {3, 20, 4, 3, Sgd()};
  run.layers_of_stage = NearEqual(static_cast<int>(CountLayers(run.model).size()), stages);
  return run;
}

RunSpec SmallVitRun(const std::string& folder, int stages) {
  VitSpec model;
  model.layers = 3;
  model.width = 24;
  model.heads = 3;
  model.patch = 4;
  model.classes = 10;
  model.channels = 1;
  model.size = 12;
  RunSpec run;
  run.name = "small-vit";
  run.model = model;
  run.data.source = SmallImages(folder, model.size);
  run.train = {3, 20, 4, 3, Sgd()};
  run.layers_of_stage = NearEqual(static_cast<int>(CountLayers(run.model).size()), stages);
  return run;
}

RunSpec SmallTwoTowerRun(const std::string& folder, int stages, int stem) {
  TwoTowerSpec model;
  model.stem = stem;
  model.layers = 2;
  RunSpec run = SmallImageRun("small-two-tower", folder, 8, model);
  run.layers_of_stage = CutStages(CountLayers(run.model), stages);
  return run;
}

void Widen(ModelSpec* model) {
  if (auto* gpt = std::get_if<GptSpec>(model)) {
    gpt->width = 192;
    gpt->context = 64;
  } else if (auto* resnet = std::get_if<ResNetSpec>(model)) {
    resnet->width = 16;
  } else if (auto* vit = std::get_if<VitSpec>(model)) {
    vit->width = 192;
    vit->patch = 2;
  } else if (auto* mlp = std::get_if<MlpSpec>(model)) {
    mlp->width = 512;
  }
}

}  // namespace weft::testing
