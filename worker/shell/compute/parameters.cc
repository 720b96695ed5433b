#include "worker/shell/compute/parameters.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/model_layers.h"
#include "run/resnet.h"

namespace weft {
namespace {

constexpr ParameterInit kZero{ParameterInit::Kind::kConstant, 0};
constexpr ParameterInit kOne{ParameterInit::Kind::kConstant, 1};
constexpr double kDeviation = 0.02;  // standard deviation of the weights of transformers

ParameterInit Normal(double deviation) { return {ParameterInit::Kind::kNormal, deviation}; }

void AppendNorm(absl::string_view name, int64_t width, LayerSpec* layer) {
  layer->parameters.push_back({absl::StrCat(name, ".weight"), {width}, kOne});
  layer->parameters.push_back({absl::StrCat(name, ".bias"), {width}, kZero});
}

void AppendLinear(absl::string_view name, int64_t in, int64_t out, double deviation, LayerSpec* layer) {
  layer->parameters.push_back({absl::StrCat(name, ".weight"), {out, in}, Normal(deviation)});
  layer->parameters.push_back({absl::StrCat(name, ".bias"), {out}, kZero});
}

// Describes a transformer block, initialized as GPT-2's: the projections that end in the residual stream
// shrink with its length.
LayerSpec TransformerBlock(int number, int64_t width, int blocks) {
  const double residual = kDeviation / std::sqrt(2.0 * blocks);
  LayerSpec block{absl::StrCat("block", number), {}};
  AppendNorm("norm1", width, &block);
  AppendLinear("attention.qkv", width, 3 * width, kDeviation, &block);
  AppendLinear("attention.projection", width, width, residual, &block);
  AppendNorm("norm2", width, &block);
  AppendLinear("mlp.expand", width, 4 * width, kDeviation, &block);
  AppendLinear("mlp.contract", 4 * width, width, residual, &block);
  return block;
}

std::vector<LayerSpec> Describe(const GptSpec& m) {
  const int64_t width = m.width;
  std::vector<LayerSpec> layers;
  layers.push_back({"embedding",
                    {{"token.weight",
                      {m.vocabulary, width},
                      Normal(kDeviation),
                      ParameterSpec::Kind::kTrained,
                      /*wide=*/true},
                     {"position.weight", {m.context, width}, Normal(kDeviation)}}});
  for (int i = 0; i < m.layers; ++i) layers.push_back(TransformerBlock(i, width, m.layers));
  LayerSpec head{"head", {}};
  AppendNorm("norm", width, &head);
  head.parameters.push_back({"projection.weight", {m.vocabulary, width}, Normal(kDeviation)});
  layers.push_back(std::move(head));
  return layers;
}

std::vector<LayerSpec> Describe(const VitSpec& m) {
  const int64_t width = m.width;
  std::vector<LayerSpec> layers;
  layers.push_back({"embedding",
                    {{"patch.weight", {width, m.channels, m.patch, m.patch}, Normal(kDeviation)},
                     {"patch.bias", {width}, kZero},
                     {"class.weight", {width}, Normal(kDeviation)},
                     {"position.weight", {m.patches() + 1, width}, Normal(kDeviation)}}});
  for (int i = 0; i < m.layers; ++i) layers.push_back(TransformerBlock(i, width, m.layers));
  LayerSpec head{"head", {}};
  AppendNorm("norm", width, &head);
  AppendLinear("projection", width, m.classes, kDeviation, &head);
  layers.push_back(std::move(head));
  return layers;
}

// Describes a linear layer, initialized as torch.nn.Linear: uniform within 1/sqrt(fan in), weights and
// biases.
LayerSpec Linear(std::string name, int64_t in, int64_t out) {
  const ParameterInit init{ParameterInit::Kind::kUniform, 1 / std::sqrt(static_cast<double>(in))};
  return {std::move(name), {{"weight", {out, in}, init}, {"bias", {out}, init}}};
}

std::vector<LayerSpec> Describe(const MlpSpec& m) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < m.layers; ++i) {
    layers.push_back(Linear(absl::StrCat("linear", i), i == 0 ? m.inputs : m.width,
                            i + 1 == m.layers ? m.classes : m.width));
    if (m.gelu_apart && i + 1 < m.layers) layers.push_back({absl::StrCat("gelu", i), {}});
  }
  return layers;
}

std::vector<LayerSpec> Describe(const TwoTowerSpec& m) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < m.stem; ++i) {
    layers.push_back(Linear(absl::StrCat("stem", i), i == 0 ? m.inputs : m.width, m.width));
  }
  for (const char* tower : {"left", "right"}) {
    for (int i = 0; i < m.layers; ++i) {
      const bool halves = i == 0 && m.stem == 0;
      layers.push_back(Linear(absl::StrCat(tower, i), halves ? m.inputs / 2 : m.width, m.width));
    }
  }
  const int64_t width = m.width, classes = m.classes;
  const ParameterInit init{ParameterInit::Kind::kUniform, 1 / std::sqrt(2.0 * m.width)};
  layers.push_back({"head",
                    {{"left.weight", {classes, width}, init},
                     {"right.weight", {classes, width}, init},
                     {"bias", {classes}, init}}});
  return layers;
}

// Appends a convolution, initialized as torchvision does: so that a ReLU's backward keeps the variance of
// gradients.
void AppendConvolution(const NormedConvolution& c, LayerSpec* layer) {
  const double fan_out = static_cast<double>(c.out * c.kernel * c.kernel);
  layer->parameters.push_back({absl::StrCat(c.convolution, ".weight"),
                               {c.out, c.in, c.kernel, c.kernel},
                               Normal(std::sqrt(2 / fan_out))});
  AppendNorm(c.norm, c.out, layer);
  for (auto norm = layer->parameters.end() - 2; norm != layer->parameters.end(); ++norm) norm->wide = true;
  constexpr auto kStatistic = ParameterSpec::Kind::kStatistic;
  layer->parameters.push_back({absl::StrCat(c.norm, ".running_mean"), {c.out}, kZero, kStatistic});
  layer->parameters.push_back({absl::StrCat(c.norm, ".running_var"), {c.out}, kOne, kStatistic});
}

std::vector<LayerSpec> Describe(const ResNetSpec& m) {
  const ResNetPlan plan = PlanOf(m);
  std::vector<LayerSpec> layers;
  AppendConvolution(plan.stem, &layers.emplace_back(LayerSpec{"stem", {}}));
  for (const ResNetBlock& block : plan.blocks) {
    LayerSpec layer{absl::StrCat("block", layers.size() - 1), {}};
    for (const NormedConvolution& c : block.path) AppendConvolution(c, &layer);
    if (block.shortcut.has_value()) AppendConvolution(*block.shortcut, &layer);
    layers.push_back(std::move(layer));
  }
  layers.push_back(Linear("head", plan.features, m.classes));
  return layers;
}

// Fills the links of the stage to the others, and of its layers to one another.
void LinkLayers(const std::vector<LayerCount>& layers, const StageLinks& links, StageLayout* layout) {
  layout->first_layer = links.first_layer;
  layout->end_layer = links.end_layer;
  layout->reads_data = links.reads_data;
  layout->consumers = links.consumers;
  layout->output = layers[links.end_layer - 1].output;
  for (const int from : links.inputs) layout->inputs.push_back(layers[from].output);
  const int data = static_cast<int>(links.inputs.size()), own = data + 1 - links.first_layer;
  layout->last_reader.assign(own + links.end_layer, 0);
  for (int l = links.first_layer; l < links.end_layer; ++l) {
    std::vector<int>& reads = layout->reads.emplace_back();
    if (layers[l].inputs.empty()) reads.push_back(data);
    for (const int from : layers[l].inputs) {
      const auto input = std::lower_bound(links.inputs.begin(), links.inputs.end(), from);
      reads.push_back(from < links.first_layer ? static_cast<int>(input - links.inputs.begin()) : own + from);
    }
    for (const int number : reads) layout->last_reader[number] = l - links.first_layer;
  }
}

// Mixes with SplitMix64's finalizer: every input bit moves every output bit.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Combine(uint64_t hash, uint64_t value) { return Mix(hash ^ Mix(value)); }

}  // namespace

int64_t ParameterSpec::elements() const {
  int64_t n = 1;
  for (int64_t s : size) n *= s;
  return n;
}

std::vector<LayerSpec> DescribeLayers(const ModelSpec& model) {
  return std::visit([](const auto& m) { return Describe(m); }, model);
}

StageLayout LayOutStage(const RunSpec& run, int stage) {
  const std::vector<LayerSpec> layers = DescribeLayers(run.model);
  StageLayout layout;
  layout.stage = stage;
  const std::vector<LayerCount> counts = CountLayers(run.model);
  LinkLayers(counts, LinkStages(counts, run.layers_of_stage).at(stage), &layout);
  constexpr int64_t kAlign = StageLayout::kAlignElements;
  for (int l = layout.first_layer; l < layout.end_layer; ++l) {
    for (const ParameterSpec& p : layers.at(l).parameters) {
      layout.slots.push_back({p, l, layers[l].name, 0});
    }
  }
  for (const auto kind : {ParameterSpec::Kind::kTrained, ParameterSpec::Kind::kStatistic}) {
    layout.statistics_begin = layout.elements;
    for (ParameterSlot& slot : layout.slots) {
      if (slot.parameter.kind != kind) continue;
      slot.offset = layout.elements;
      layout.elements += (slot.parameter.elements() + kAlign - 1) / kAlign * kAlign;
    }
  }
  return layout;
}

std::string CheckpointName(int stage, const ParameterSlot& slot) {
  return absl::StrCat(absl::StrFormat("stage%02d.", stage), slot.layer_name, ".", slot.parameter.name);
}

uint64_t ParameterSeed(uint64_t seed, int layer, absl::string_view parameter) {
  uint64_t hash = Combine(Mix(seed), static_cast<uint64_t>(layer));
  for (char c : parameter) hash = Combine(hash, static_cast<unsigned char>(c));
  return hash;
}

uint64_t MaskSeed(uint64_t seed, int step, int microbatch, int layer, int site) {
  uint64_t hash = ~Mix(seed);
  for (int value : {step, microbatch, layer, site}) hash = Combine(hash, static_cast<uint64_t>(value));
  return hash;
}

}  // namespace weft
