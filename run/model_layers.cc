#include "run/model_layers.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "run/resnet.h"

namespace weft {
namespace {

constexpr int64_t kFloat = 4, kInt64 = 8;  // bytes; the bytes of what layers compute in are an argument
constexpr int64_t kAlignment = 64;

// The counts of operations include only what grows with a product of sizes: the multiply-adds of matrix
// products, and the additions of an embedding that has no product. They leave out normalizations, activations
// and softmax.
//
// Returns the bytes of the float32 copy of narrower scores: the loss is float32, so those scores and their
// gradient are there as well while it is made.
int64_t NarrowScores(int64_t scores, int64_t element) {
  return element < kFloat ? 2 * (element + kFloat) * scores : 0;
}

// Counts a transformer block over `tokens` tokens. `element` is the bytes of a number that the layers
// compute. Dropout keeps nothing, here and elsewhere: the backward makes its mask again.
LayerCount CountBlock(int number, int64_t tokens, int64_t width, int64_t heads, int64_t element) {
  const double t = static_cast<double>(tokens), c = static_cast<double>(width);
  const int64_t hidden = tokens * width;
  const double products = 2 * t * 12 * c * c;                  // qkv 3, projection 1, expand 4, contract 4
  const double attention = 2 * 2 * t * t * c;                  // scores, and their product with the values
  const int64_t parameters = 12 * width * width + 13 * width;  // with biases and two norms
  // The sum, in units of the hidden state: both norms' outputs, qkv 3, attention's output and the same by
  // tokens, the sum in the middle, before and behind the GELU 4 each, the output. Added are two norms'
  // statistics, and those of the attention's softmax.
  const int64_t activation_bytes = element * hidden * 17 + kFloat * tokens * (4 + heads);
  return {absl::StrCat("block", number),
          {number},
          products + attention,
          parameters,
          {tokens, width},
          activation_bytes,
          20 * kAlignment};
}

std::vector<LayerCount> Count(const GptSpec& m, int64_t element) {
  const int64_t width = m.width, context = m.context, vocabulary = m.vocabulary;
  const double tokens = static_cast<double>(context), c = static_cast<double>(width);
  const int64_t hidden = context * width;
  std::vector<LayerCount> layers;
  // It keeps the tokens and the output.
  layers.push_back({"embedding",
                    {},
                    tokens * c,
                    (vocabulary + context) * width,
                    {context, width},
                    kInt64 * context + element * hidden,
                    3 * kAlignment,
                    0,
                    element < kFloat ? kFloat * hidden : 0});  // the token embedding is float32
  for (int i = 0; i < m.layers; ++i) layers.push_back(CountBlock(i, context, width, m.heads, element));
  // It keeps the norm's statistics and output, the scores' logarithmic softmax, and the targets.
  layers.push_back({"head",
                    {m.layers},
                    2 * tokens * c * static_cast<double>(vocabulary),
                    2 * width + width * vocabulary,
                    {},
                    element * hidden + kFloat * (2 * context + context * vocabulary) + kInt64 * context,
                    8 * kAlignment,
                    0,
                    NarrowScores(context * vocabulary, element)});
  return layers;
}

std::vector<LayerCount> Count(const VitSpec& m, int64_t element) {
  const int64_t width = m.width, patches = m.patches(), tokens = patches + 1, classes = m.classes;
  const int64_t pixels = int64_t{m.channels} * m.patch * m.patch;  // numbers of a patch
  std::vector<LayerCount> layers;
  // It keeps the image by patches and the output. While it runs, it also needs the image, the products and
  // all tokens together.
  layers.push_back({"embedding",
                    {},
                    2.0 * static_cast<double>(patches) * static_cast<double>(pixels * width),
                    pixels * width + width + width + tokens * width,
                    {tokens, width},
                    element * (patches * pixels + tokens * width),
                    3 * kAlignment,
                    0,
                    kFloat * patches * pixels + 2 * element * tokens * width +
                        (element < kFloat ? element * patches * pixels : 0)});
  for (int i = 0; i < m.layers; ++i) layers.push_back(CountBlock(i, tokens, width, m.heads, element));
  // It reads the first token only. It keeps the norm's statistics and output, the logarithmic softmax, and
  // the target.
  layers.push_back({"head",
                    {m.layers},
                    2.0 * static_cast<double>(width) * static_cast<double>(classes),
                    2 * width + width * classes + classes,
                    {},
                    element * width + kFloat * (2 + classes) + kInt64,
                    8 * kAlignment,
                    0,
                    element * tokens * width + NarrowScores(classes, element)});
  return layers;
}

// oneDNN's convolutions compute on blocks of 8 or 16 channels. A backward copies each image into such blocks
// at most twice, and a weight four times, and takes a little memory besides (measured on 250 random shapes of
// kernels 1, 3 and 7 under AVX2, AVX and SSE4.1).
constexpr int64_t kChannelsOfBlock = 16, kConvolutionScratch = int64_t{64} << 10;
int64_t InBlocks(int64_t channels) {
  return (channels + kChannelsOfBlock - 1) / kChannelsOfBlock * kChannelsOfBlock;
}

// Adds a convolution and its norm. The convolution keeps its own output, which the norm reads; the norm's
// output stays only if a later operation reads it.
void AddConvolution(const NormedConvolution& c, int64_t element, LayerCount* layer) {
  const int64_t places = c.out_side * c.out_side, taps = c.in * c.kernel * c.kernel;
  layer->forward_flops += 2.0 * static_cast<double>(taps * c.out) * static_cast<double>(places);
  layer->parameters += taps * c.out + 2 * c.out;
  layer->statistics += 2 * c.out;
  layer->activation_bytes += element * c.out * places;
  // These are the batch's mean and variance, each in three forms.
  layer->fixed_activation_bytes += kAlignment + 6 * (kFloat * c.out + kAlignment);
  if (c.kernel == 1 && c.stride == 1) return;  // it is a product of matrices
  // A convolution either unfolds the image, one column for each place, or copies images and weights into
  // blocks of channels.
  const int64_t in = InBlocks(c.in), out = InBlocks(c.out);
  const int64_t copied = 2 * element * (in * c.in_side * c.in_side + out * places);
  layer->work_bytes = std::max({layer->work_bytes, element * taps * places, copied});
  layer->work_fixed =
      std::max(layer->work_fixed, 4 * element * in * out * c.kernel * c.kernel + kConvolutionScratch);
}

std::vector<LayerCount> Count(const ResNetSpec& m, int64_t element) {
  const ResNetPlan plan = PlanOf(m);
  const NormedConvolution& first = plan.stem;
  std::vector<LayerCount> layers;
  LayerCount stem;
  stem.name = "stem";
  AddConvolution(first, element, &stem);
  stem.output = {first.out, plan.stem_side, plan.stem_side};
  // It keeps the image, the ReLU's output, and if that is pooled, the output and the place of each maximum.
  const int64_t activated = first.out * first.out_side * first.out_side;
  const int64_t image = first.in * first.in_side * first.in_side;
  stem.activation_bytes +=
      element * (image + activated) + (plan.pools ? (element + kInt64) * stem.output_elements() : 0);
  if (element < kFloat) stem.work_bytes += kFloat * image;  // the image as it comes, before it is narrowed
  stem.fixed_activation_bytes += 4 * kAlignment;
  layers.push_back(std::move(stem));
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    const ResNetBlock& block = plan.blocks[i];
    LayerCount layer;
    layer.name = absl::StrCat("block", i);
    layer.inputs = {static_cast<int>(i)};
    // It keeps every ReLU's output, the last of which is the block's.
    for (const NormedConvolution& c : block.path) {
      AddConvolution(c, element, &layer);
      layer.activation_bytes += element * c.out * c.out_side * c.out_side;
      layer.fixed_activation_bytes += kAlignment;
    }
    if (block.shortcut.has_value()) AddConvolution(*block.shortcut, element, &layer);
    const NormedConvolution& last = block.path.back();
    layer.output = {last.out, last.out_side, last.out_side};
    layers.push_back(std::move(layer));
  }
  const int64_t features = plan.features, classes = m.classes;
  // It keeps the averages, the logarithmic softmax, and the target.
  layers.push_back({"head",
                    {static_cast<int>(plan.blocks.size())},
                    2.0 * static_cast<double>(features) * static_cast<double>(classes),
                    features * classes + classes,
                    {},
                    element * features + kFloat * classes + kInt64,
                    6 * kAlignment,
                    0,
                    element * features * plan.last_side * plan.last_side + NarrowScores(classes, element)});
  return layers;
}

// Counts a linear layer with a GELU and dropout behind it, or, with `scores`, the loss. `read` is how many
// numbers it keeps of its input.
LayerCount CountLinear(std::string name, std::vector<int> inputs, int64_t in, int64_t out, bool scores,
                       int64_t read, int64_t element) {
  // It keeps the input of the GELU and the output; the last layer keeps the logarithmic softmax and the
  // target.
  const int64_t activation_bytes = scores ? kFloat * out + kInt64 : element * out * 2;
  return {std::move(name),
          std::move(inputs),
          2.0 * static_cast<double>(in) * static_cast<double>(out),
          in * out + out,
          scores ? std::vector<int64_t>() : std::vector<int64_t>{out},
          activation_bytes + element * read,
          6 * kAlignment,
          0,
          (scores ? NarrowScores(out, element) : 0) + (element < kFloat ? kFloat * read : 0)};
}

// Takes the GELU out of a linear layer. Its work is its input, as the embedding's.
LayerCount SplitOffGelu(int number, int64_t element, LayerCount* linear) {
  const int64_t out = linear->output_elements();
  LayerCount gelu = *linear;
  gelu.name = absl::StrCat("gelu", number);
  gelu.inputs = {2 * number};
  gelu.forward_flops = static_cast<double>(out);
  gelu.parameters = 0;
  gelu.activation_bytes -= element * out;  // its input is the linear layer's output
  linear->activation_bytes -= gelu.activation_bytes;
  return gelu;
}

std::vector<LayerCount> Count(const MlpSpec& m, int64_t element) {
  std::vector<LayerCount> layers;
  for (int i = 0; i < m.layers; ++i) {
    const int64_t in = i == 0 ? m.inputs : m.width;
    const bool last = i + 1 == m.layers;
    const int before = static_cast<int>(layers.size()) - 1;
    layers.push_back(CountLinear(absl::StrCat("linear", i),
                                 i == 0 ? std::vector<int>() : std::vector<int>{before}, in,
                                 last ? m.classes : m.width, last, 0, element));
    if (m.gelu_apart && !last) layers.push_back(SplitOffGelu(i, element, &layers.back()));
    if (i == 0) layers.front().activation_bytes += element * in;
    if (i == 0 && element < kFloat) layers.front().work_bytes += kFloat * in;
  }
  return layers;
}

std::vector<LayerCount> Count(const TwoTowerSpec& m, int64_t element) {
  std::vector<LayerCount> layers;
  // Appends a layer that reads layer `from`, or the data where that is -1.
  const auto append = [&](std::string name, int from, int64_t in) {
    layers.push_back(CountLinear(std::move(name), from < 0 ? std::vector<int>() : std::vector<int>{from}, in,
                                 m.width, false, from < 0 ? in : 0, element));
    return static_cast<int>(layers.size()) - 1;
  };
  int stem = -1;
  for (int i = 0; i < m.stem; ++i) stem = append(absl::StrCat("stem", i), stem, i == 0 ? m.inputs : m.width);
  std::vector<int> ends;
  for (const char* tower : {"left", "right"}) {
    int at = stem;
    for (int i = 0; i < m.layers; ++i) {
      at = append(absl::StrCat(tower, i), at, at < 0 ? m.inputs / 2 : m.width);
    }
    ends.push_back(at);
  }
  layers.push_back(CountLinear("head", ends, 2 * int64_t{m.width}, m.classes, true, 0, element));
  return layers;
}

// Returns, by layer, the last layer that reads it; the layer itself if none does.
std::vector<int> LastReaders(const std::vector<LayerCount>& layers) {
  std::vector<int> last(layers.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    last[l] = static_cast<int>(l);
    for (const int input : layers[l].inputs) last[input] = static_cast<int>(l);
  }
  return last;
}

}  // namespace

std::vector<LayerCount> CountLayers(const ModelSpec& model, Precision precision) {
  const int64_t element = ComputeBytes(precision);
  return std::visit([element](const auto& m) { return Count(m, element); }, model);
}

int64_t LayerCount::output_elements() const {
  return output.empty() ? 0 : std::accumulate(output.begin(), output.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages) {
  const int count = static_cast<int>(layers.size());
  if (stages < 1 || stages > count) std::abort();  // the caller checks and words the error for the user
  std::vector<double> before(count + 1, 0);        // FLOPs of layers [0, i)
  for (int i = 0; i < count; ++i) before[i + 1] = before[i] + layers[i].forward_flops;
  const std::vector<int> last_reader = LastReaders(layers);

  // least[k][i]: the largest part when layers [i, count) are cut into k parts at best; cut[k][i]: where the
  // first of these parts ends, the earliest of equally good places.
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(stages + 1, std::vector<double>(count + 1, kNone));
  std::vector<std::vector<int>> cut(stages + 1, std::vector<int>(count + 1, count));
  for (int i = 0; i < count; ++i) least[1][i] = before[count] - before[i];
  for (int k = 2; k <= stages; ++k) {
    for (int i = 0; i + k <= count; ++i) {
      int reach = i;  // last reader of the layers of the part except its last one
      for (int end = i + 1; end + k - 1 <= count; reach = std::max(reach, last_reader[end++ - 1])) {
        const double largest = std::max(before[end] - before[i], least[k - 1][end]);
        if (reach < end && largest < least[k][i]) {
          least[k][i] = largest;
          cut[k][i] = end;
        }
      }
    }
  }
  std::vector<int> sizes;
  if (least[stages][0] == kNone) return sizes;
  int begin = 0;
  for (int k = stages; k >= 1; --k) {
    const int end = k == 1 ? count : cut[k][begin];
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

absl::Status CheckCut(const std::vector<LayerCount>& layers, const std::vector<int>& layers_of_stage) {
  const std::vector<int> last_reader = LastReaders(layers);
  int begin = 0;
  for (size_t stage = 0; stage < layers_of_stage.size(); ++stage) {
    const int end = begin + layers_of_stage[stage];
    for (int l = begin; l + 1 < end; ++l) {
      if (last_reader[l] < end) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage, " ends with layer ", layers[end - 1].name, ", and ",
                       layers[last_reader[l]].name, " of a later stage reads ", layers[l].name,
                       " in its middle; cut so that other stages read only the last layer of a stage"));
    }
    begin = end;
  }
  return absl::OkStatus();
}

std::vector<StageLinks> LinkStages(const std::vector<LayerCount>& layers,
                                   const std::vector<int>& layers_of_stage) {
  std::vector<StageLinks> stages(layers_of_stage.size());
  std::vector<int> stage_of(layers.size());
  int layer = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    StageLinks& stage = stages[s];
    stage.first_layer = layer;
    stage.end_layer = layer + layers_of_stage[s];
    std::set<int> inputs;
    for (; layer < stage.end_layer; ++layer) {
      stage_of[layer] = static_cast<int>(s);
      stage.reads_data |= layers[layer].inputs.empty();
      for (const int from : layers[layer].inputs) {
        if (from < stage.first_layer) inputs.insert(from);
      }
    }
    stage.inputs.assign(inputs.begin(), inputs.end());
    for (const int from : inputs) ++stages[stage_of[from]].consumers;
  }
  return stages;
}

std::vector<std::vector<int>> StageInputs(const std::vector<LayerCount>& layers,
                                          const std::vector<int>& layers_of_stage) {
  const std::vector<StageLinks> stages = LinkStages(layers, layers_of_stage);
  std::vector<int> stage_of(layers.size());
  std::vector<std::vector<int>> inputs;
  bool chain = true;
  for (const StageLinks& stage : stages) {
    const int number = static_cast<int>(inputs.size());
    stage_of[stage.end_layer - 1] = number;
    std::vector<int>& of_stage = inputs.emplace_back();
    for (const int from : stage.inputs) of_stage.push_back(stage_of[from]);
    chain &= of_stage == (number == 0 ? std::vector<int>() : std::vector<int>{number - 1});
  }
  if (chain) inputs.clear();
  return inputs;
}

}  // namespace weft
