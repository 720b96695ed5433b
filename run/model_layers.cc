#include "run/model_layers.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "run/layer_operations.h"
#include "run/resnet.h"

namespace weft {
namespace {

// ---- the operations of each kind; the module reads the parameters in the order in which they stand here

constexpr double kDeviation = 0.02;  // standard deviation of the weights of transformers

ParameterInit Normal(double deviation) { return {ParameterInit::Kind::kNormal, deviation}; }

// Initializes as torch.nn.Linear: uniform within 1/sqrt(fan in), weights and biases.
ParameterInit Uniform(int64_t fan_in) {
  return {ParameterInit::Kind::kUniform, 1 / std::sqrt(static_cast<double>(fan_in))};
}

void AddOperations(const TiedTokensSpec& k, LayerOperations* layer) {
  layer->Parameter("weight", {k.vocabulary, k.width}, Normal(kDeviation));
  layer->Flops(static_cast<double>(k.vocabulary) * static_cast<double>(k.width));  // a copy
  layer->KeepBytes(0, layer->element() * k.vocabulary * k.width);
  layer->Output({k.vocabulary, k.width}, /*by_sample=*/false);
}

void AddOperations(const TokenEmbeddingSpec& k, LayerOperations* layer) {
  const int64_t hidden = k.context * k.width;
  if (!k.tied) layer->Parameter("token.weight", {k.vocabulary, k.width}, Normal(kDeviation), /*wide=*/true);
  layer->Parameter("position.weight", {k.context, k.width}, Normal(kDeviation));
  layer->Flops(static_cast<double>(k.context) * static_cast<double>(k.width));  // additions
  layer->KeepIntegers(k.context);                                               // the tokens
  layer->Keep(hidden);
  // A token embedding that is not tied is float32.
  if (layer->narrow() && !k.tied) layer->Work(LayerOperations::kFloat * hidden);
  layer->Output({k.context, k.width});
}

void AddOperations(const PatchEmbeddingSpec& k, LayerOperations* layer) {
  const int64_t patches = k.patches(), tokens = patches + 1, width = k.width;
  const int64_t pixels = k.channels * k.patch * k.patch, image = patches * pixels;  // numbers
  layer->Parameter("patch.weight", {width, k.channels, k.patch, k.patch}, Normal(kDeviation));
  layer->Parameter("patch.bias", {width}, kZeroInit);
  layer->Parameter("class.weight", {width}, Normal(kDeviation));
  layer->Parameter("position.weight", {tokens, width}, Normal(kDeviation));
  layer->Product(patches, pixels, width);
  layer->Keep(image);  // by patches
  layer->Keep(tokens * width);
  // While it runs, the image, the products and all tokens together are there as well.
  layer->Work(LayerOperations::kFloat * image + 2 * layer->element() * tokens * width);
  if (layer->narrow()) layer->Work(layer->element() * image);
  layer->Output({tokens, width});
}

// The block is initialized as GPT-2's: the projections that end in the residual stream shrink with its
// length.
void AddOperations(const TransformerBlockSpec& k, LayerOperations* layer) {
  const int64_t tokens = k.tokens, width = k.width, hidden = tokens * width;
  const ParameterInit weight = Normal(kDeviation), residual = Normal(kDeviation / std::sqrt(2.0 * k.blocks));
  layer->Norm("norm1", tokens, width);
  layer->Linear("attention.qkv", tokens, width, 3 * width, weight, kZeroInit);
  layer->Keep(3 * hidden);
  layer->Product(tokens, width, tokens);  // scores, and their product with the values
  layer->Product(tokens, tokens, width);
  layer->KeepFloats(tokens * k.heads);  // statistics of the softmax
  layer->Keep(hidden);                  // the attention's output
  layer->Linear("attention.projection", tokens, width, width, residual, kZeroInit);
  layer->Keep(hidden);  // the sum in the middle
  layer->Norm("norm2", tokens, width);
  layer->Linear("mlp.expand", tokens, width, 4 * width, weight, kZeroInit);
  layer->Keep(4 * hidden);  // before the GELU
  layer->Keep(4 * hidden);  // and behind it
  layer->Linear("mlp.contract", tokens, 4 * width, width, residual, kZeroInit);
  layer->Keep(hidden);
  layer->Output({tokens, width});
}

void AddOperations(const TokenScoresSpec& k, LayerOperations* layer) {
  layer->Norm("norm", k.context, k.width);
  if (k.tied) {
    layer->Product(k.context, k.width, k.vocabulary);
  } else {
    layer->Linear("projection", k.context, k.width, k.vocabulary, Normal(kDeviation), {});
  }
  layer->Loss(k.context, k.vocabulary, ScoreColumnsOnGpu(k.vocabulary));
}

void AddOperations(const ClassTokenScoresSpec& k, LayerOperations* layer) {
  layer->Norm("norm", 1, k.width);
  layer->Linear("projection", 1, k.width, k.classes, Normal(kDeviation), kZeroInit);
  layer->Loss(1, k.classes);
  layer->Work(layer->element() * k.tokens * k.width);  // the gradient of all tokens
}

void AddOperations(const LinearSpec& k, LayerOperations* layer) {
  layer->Linear("", 1, k.in, k.out, Uniform(k.in), Uniform(k.in));
  // A tower without a stem reads one half of the data.
  layer->KeepInput(k.in, k.first_column.has_value() ? std::optional(2 * k.in) : std::nullopt);
  layer->Keep(k.out);
  if (k.gelu) layer->Keep(k.out);
  layer->Output({k.out});
}

void AddOperations(const GeluSpec& k, LayerOperations* layer) {
  layer->Flops(static_cast<double>(k.width));
  layer->Keep(k.width);
  layer->Output({k.width});
}

void AddOperations(const ScoresSpec& k, LayerOperations* layer) {
  layer->Linear("", 1, k.in, k.classes, Uniform(k.in), Uniform(k.in));
  layer->KeepInput(k.in);
  layer->Loss(1, k.classes);
}

void AddOperations(const JoinedScoresSpec& k, LayerOperations* layer) {
  const ParameterInit init = Uniform(2 * k.width);
  layer->Linear("left", 1, k.width, k.classes, init, {});
  layer->Linear("right", 1, k.width, k.classes, init, {});
  layer->Parameter("bias", {k.classes}, init);
  layer->Loss(1, k.classes);
}

void AddOperations(const StemSpec& k, LayerOperations* layer) {
  const NormedConvolution& c = k.convolution;
  layer->Convolution(c);
  layer->KeepInput(c.in * c.in_side * c.in_side);
  layer->Keep(c.out * c.out_side * c.out_side);  // the ReLU's output
  const int64_t pooled = c.out * k.side * k.side;
  if (k.pools) layer->Keep(pooled);
  if (k.pools) layer->KeepIntegers(pooled);  // the place of each maximum
  layer->Output({c.out, k.side, k.side});
}

void AddOperations(const ResidualBlockSpec& k, LayerOperations* layer) {
  for (const NormedConvolution& c : k.plan.path) {
    layer->Convolution(c);
    layer->Keep(c.out * c.out_side * c.out_side);  // every ReLU's output, the last of which is the block's
  }
  if (k.plan.shortcut.has_value()) layer->Convolution(*k.plan.shortcut);
  const NormedConvolution& last = k.plan.path.back();
  layer->Output({last.out, last.out_side, last.out_side});
}

void AddOperations(const AveragedScoresSpec& k, LayerOperations* layer) {
  layer->Linear("", 1, k.features, k.classes, Uniform(k.features), Uniform(k.features));
  layer->Keep(k.features);  // the averages
  layer->Loss(1, k.classes);
  layer->Work(layer->element() * k.features * k.side * k.side);
}

// The exporter measured what the graph keeps, besides the fields of the data.
void AddOperations(const ExportedLayerSpec& k, LayerOperations* layer) {
  const ExportedLayer& graph = k.graph();
  for (const ExportedTensor& p : graph.parameters)
    layer->ParameterOfFile(p.name, p.sizes, k.initial_or_own(), p.type == ElementType::kF32);
  for (const ExportedStatistic& s : graph.statistics)
    layer->StatisticOfFile(s.name, s.sizes, k.initial_or_own(), static_cast<float>(s.momentum));
  for (const ExportedConstant& c : graph.constants) layer->ConstantBytes(TensorBytes(c.type, c.sizes));
  layer->Flops(graph.costs.flops);
  layer->KeepBytes(graph.costs.activation_bytes, graph.costs.fixed_activation_bytes);
  for (const int field : graph.fields) layer->KeepBytes(k.model->fields[field].bytes, 0);
  layer->Work(graph.costs.work_bytes);
  // Each tensor is aligned by itself.
  layer->KeepBytes(0, static_cast<int64_t>(graph.operations.size()) * kTensorAlignment);
  layer->Output(graph.output_sizes, graph.output_by_sample);
}

LayerOperations OperationsOf(const LayerSpec& layer, int64_t element) {
  LayerOperations operations(element, layer.reads_data());
  std::visit([&operations](const auto& kind) { AddOperations(kind, &operations); }, layer.kind);
  return operations;
}

// ---- the layers of each model

constexpr double kGptEpsilon = 1e-5, kVitEpsilon = 1e-6;  // of the publications

std::vector<LayerSpec> LayersOf(const GptSpec& m) {
  std::vector<LayerSpec> layers;
  const std::vector<int> tokens =
      m.tied ? std::vector<int>{0} : std::vector<int>();  // the layer of the tied embedding
  if (m.tied) layers.push_back({"token", {}, TiedTokensSpec{m.vocabulary, m.width}});
  layers.push_back(
      {"embedding", tokens, TokenEmbeddingSpec{m.vocabulary, m.context, m.width, m.dropout, m.tied}});
  for (int i = 0; i < m.layers; ++i) {
    layers.push_back({absl::StrCat("block", i),
                      {m.embedding_layer() + i},
                      TransformerBlockSpec{m.context, m.width, m.heads, m.layers, /*causal=*/true,
                                           kGptEpsilon, m.dropout, m.tanh_gelu}});
  }
  std::vector<int> read_by_head = tokens;
  read_by_head.push_back(m.embedding_layer() + m.layers);
  layers.push_back(
      {"head", read_by_head, TokenScoresSpec{m.context, m.width, m.vocabulary, kGptEpsilon, m.tied}});
  return layers;
}

std::vector<LayerSpec> LayersOf(const VitSpec& m) {
  const int64_t tokens = m.patches() + 1;
  std::vector<LayerSpec> layers;
  layers.push_back({"embedding", {}, PatchEmbeddingSpec{m.channels, m.size, m.patch, m.width}});
  for (int i = 0; i < m.layers; ++i) {
    layers.push_back(
        {absl::StrCat("block", i),
         {i},
         TransformerBlockSpec{tokens, m.width, m.heads, m.layers, /*causal=*/false, kVitEpsilon}});
  }
  layers.push_back({"head", {m.layers}, ClassTokenScoresSpec{tokens, m.width, m.classes, kVitEpsilon}});
  return layers;
}

std::vector<LayerSpec> LayersOf(const ResNetSpec& m) {
  const ResNetPlan plan = PlanOf(m);
  std::vector<LayerSpec> layers;
  layers.push_back({"stem", {}, StemSpec{plan.stem, plan.pools, plan.stem_side}});
  for (const ResNetBlock& block : plan.blocks) {
    const int before = static_cast<int>(layers.size()) - 1;
    layers.push_back({absl::StrCat("block", before), {before}, ResidualBlockSpec{block}});
  }
  const auto blocks = static_cast<int>(plan.blocks.size());
  layers.push_back({"head", {blocks}, AveragedScoresSpec{plan.features, plan.last_side, m.classes}});
  return layers;
}

std::vector<LayerSpec> LayersOf(const MlpSpec& m) {
  std::vector<LayerSpec> layers;
  // Appends a layer that reads the one before.
  const auto append = [&layers](const char* name, int number, LayerKind kind) {
    const int before = static_cast<int>(layers.size()) - 1;
    layers.push_back({absl::StrCat(name, number), before < 0 ? std::vector<int>() : std::vector<int>{before},
                      std::move(kind)});
  };
  for (int i = 0; i < m.layers; ++i) {
    const int64_t in = i == 0 ? m.inputs : m.width;
    if (i + 1 == m.layers) {
      append("linear", i, ScoresSpec{in, m.classes});
    } else if (m.gelu_apart) {
      append("linear", i, LinearSpec{in, m.width, /*gelu=*/false});
      append("gelu", i, GeluSpec{m.width, m.dropout});
    } else {
      append("linear", i, LinearSpec{in, m.width, /*gelu=*/true, m.dropout});
    }
  }
  return layers;
}

std::vector<LayerSpec> LayersOf(const TwoTowerSpec& m) {
  std::vector<LayerSpec> layers;
  // Appends a layer that reads layer `from`, or the data where that is -1.
  const auto append = [&](std::string name, int from, LinearSpec kind) {
    kind.out = m.width;
    kind.dropout = m.dropout;
    layers.push_back({std::move(name), from < 0 ? std::vector<int>() : std::vector<int>{from}, kind});
    return static_cast<int>(layers.size()) - 1;
  };
  int stem = -1;
  for (int i = 0; i < m.stem; ++i)
    stem = append(absl::StrCat("stem", i), stem, {.in = i == 0 ? m.inputs : m.width});
  std::vector<int> ends;
  const int64_t half = m.inputs / 2;
  for (const int tower : {0, 1}) {
    int at = stem;
    for (int i = 0; i < m.layers; ++i) {
      LinearSpec kind{.in = m.width};
      if (at < 0) kind = {.in = half, .first_column = tower * half};
      at = append(absl::StrCat(tower == 0 ? "left" : "right", i), at, kind);
    }
    ends.push_back(at);
  }
  layers.push_back({"head", std::move(ends), JoinedScoresSpec{m.width, m.classes}});
  return layers;
}

std::vector<LayerSpec> LayersOf(const ExportedSpec& m) {
  std::vector<LayerSpec> layers;
  for (const ExportedLayer& layer : m.model->layers) {
    const auto number = static_cast<int>(layers.size());
    layers.push_back({layer.name, layer.layers, ExportedLayerSpec{m.model, m.weights(), m.initial, number}});
  }
  return layers;
}

std::vector<LayerSpec> LayersOf(const ModelSpec& model) {
  return std::visit([](const auto& m) { return LayersOf(m); }, model);
}

}  // namespace

std::vector<LayerSpec> DescribeLayers(const ModelSpec& model) {
  std::vector<LayerSpec> layers = LayersOf(model);
  for (LayerSpec& layer : layers) {
    layer.parameters = OperationsOf(layer, ComputeBytes(Precision::kFloat32)).parameters();
  }
  return layers;
}

std::vector<LayerCount> CountLayers(const ModelSpec& model, Precision precision) {
  std::vector<LayerCount> counts;
  for (const LayerSpec& layer : LayersOf(model)) {
    LayerCount& count = counts.emplace_back(OperationsOf(layer, ComputeBytes(precision)).Count());
    count.name = layer.name;
    count.inputs = layer.inputs;
    count.reads_data = layer.reads_data();
  }
  return counts;
}

}  // namespace weft
