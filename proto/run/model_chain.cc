#include "proto/run/model_chain.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr int64_t kFloat = 4, kInt64 = 8;
constexpr int64_t kAlignment = 64;

// Only what grows with a product of sizes is counted: the multiply-adds of matrix products, and the additions
// of the embedding, which has no product. Normalizations, activations and softmax are left out.
std::vector<LayerCount> Count(const GptSpec& m) {
  const int64_t width = m.width, context = m.context, vocabulary = m.vocabulary;
  const double tokens = static_cast<double>(context), c = static_cast<double>(width);
  const int64_t hidden = context * width;
  std::vector<LayerCount> layers;
  const int64_t masks = m.dropout > 0 ? 1 : 0;  // at each place
  // The tokens, the output, a mask.
  layers.push_back({"embedding", tokens * c, (vocabulary + context) * width, hidden,
                    kInt64 * context + kFloat * hidden * (1 + masks), 3 * kAlignment});
  for (int i = 0; i < m.layers; ++i) {
    const double products = 2 * tokens * 12 * c * c;             // qkv 3, projection 1, expand 4, contract 4
    const double attention = 2 * 2 * tokens * tokens * c;        // scores, and their product with the values
    const int64_t parameters = 12 * width * width + 13 * width;  // with biases and two norms
    // In units of the hidden state: both norms' outputs, qkv 3, attention's output and the same by tokens,
    // the sum in the middle, before and behind the GELU 4 each, the output, two masks. Two norms' statistics,
    // and those of the attention's softmax.
    const int64_t left = kFloat * hidden * (17 + 2 * masks) + kFloat * context * (4 + m.heads);
    layers.push_back(
        {absl::StrCat("block", i), products + attention, parameters, hidden, left, 20 * kAlignment});
  }
  // The norm's statistics and output, the scores' logarithmic softmax, the targets.
  layers.push_back({"head", 2 * tokens * c * static_cast<double>(vocabulary), 2 * width + width * vocabulary,
                    0, kFloat * (hidden + 2 * context + context * vocabulary) + kInt64 * context,
                    8 * kAlignment});
  return layers;
}

std::vector<LayerCount> Count(const MlpSpec& m) {
  std::vector<LayerCount> layers;
  for (int i = 0; i < m.layers; ++i) {
    const int64_t in = i == 0 ? m.inputs : m.width;
    const bool last = i + 1 == m.layers;
    const int64_t out = last ? m.classes : m.width;
    // Before and behind the GELU and a mask; of the last layer the logarithmic softmax and the target; of the
    // first also the data.
    const int64_t left = last ? kFloat * out + kInt64 : kFloat * out * (m.dropout > 0 ? 3 : 2);
    layers.push_back({absl::StrCat("linear", i), 2.0 * static_cast<double>(in) * static_cast<double>(out),
                      in * out + out, last ? 0 : out, left + (i == 0 ? kFloat * in : 0), 6 * kAlignment});
  }
  return layers;
}

}  // namespace

std::vector<LayerCount> CountLayers(const ModelSpec& model) {
  return std::visit([](const auto& m) { return Count(m); }, model);
}

std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages) {
  const int count = static_cast<int>(layers.size());
  if (stages < 1 || stages > count) std::abort();  // the caller checks and words the error for the user
  std::vector<double> before(count + 1, 0);        // FLOPs of layers [0, i)
  for (int i = 0; i < count; ++i) before[i + 1] = before[i] + layers[i].forward_flops;

  // least[k][i]: the largest part when layers [i, count) are cut into k parts at best; cut[k][i]: where the
  // first of these parts ends, the earliest of equally good places.
  std::vector<std::vector<double>> least(stages + 1, std::vector<double>(count + 1));
  std::vector<std::vector<int>> cut(stages + 1, std::vector<int>(count + 1, count));
  for (int i = 0; i < count; ++i) least[1][i] = before[count] - before[i];
  for (int k = 2; k <= stages; ++k) {
    for (int i = 0; i + k <= count; ++i) {
      least[k][i] = std::numeric_limits<double>::infinity();
      for (int end = i + 1; end + k - 1 <= count; ++end) {
        const double largest = std::max(before[end] - before[i], least[k - 1][end]);
        if (largest < least[k][i]) {
          least[k][i] = largest;
          cut[k][i] = end;
        }
      }
    }
  }
  std::vector<int> sizes;
  int begin = 0;
  for (int k = stages; k >= 1; --k) {
    const int end = k == 1 ? count : cut[k][begin];
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

}  // namespace weft
