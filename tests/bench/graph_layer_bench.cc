// Measures what interpreting a layer of an exported model costs: a block of a GPT as its graph runs through
// LibTorch's dispatcher, against the same operations called from C++. Both record the graph of a backward.
//
// The block is `blocks.0` of tests/exported/models/gpt_bf16.weft, in float32: 27 operations on 4 samples of 8
// tokens and width 16, so that the operations themselves take little. WEFT_SOURCE is the source folder.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "run/exported_model_json.h"
#include "worker/shell/torch/graph_layer.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {
namespace {

constexpr int64_t kSamples = 4, kTokens = 8, kWidth = 16, kHeads = 2;

std::string Folder() {
  const char* const source = std::getenv("WEFT_SOURCE");
  return std::string(source == nullptr ? "." : source) + "/tests/exported/models/gpt_bf16.weft";
}

struct Block {
  ExportedLayerSpec spec;
  std::vector<at::Tensor> parameters;
  at::Tensor x, data, tokens, causal;

  Block() {
    PrepareProcess();
    PrepareThread();
    std::ifstream in(Folder() + "/model.json");
    const auto model = ParseExportedModel(nlohmann::json::parse(in));
    if (!model.ok()) std::abort();
    spec = {*model, Folder() + "/weights.safetensors", "", 2};
    if (spec.graph().name != "blocks.0") std::abort();
    for (const ExportedTensor& p : spec.graph().parameters)
      parameters.push_back(at::rand(p.sizes).mul_(0.1).set_requires_grad(true));
    x = at::rand({kSamples, kTokens, kWidth}).set_requires_grad(true);
    tokens = at::randint(1, 32, {kSamples, kTokens}, at::kLong);
    // The bytes of both fields, of which the block reads the second.
    data = at::cat({tokens, tokens}, 1).contiguous().view(at::kByte);
    causal = at::ones({kTokens, kTokens}, at::kBool).tril();
  }
};

at::Tensor Called(const Block& b) {
  const std::vector<at::Tensor>& p = b.parameters;  // norm1, qkv, out, norm2, up, down: weight and bias each
  const at::Tensor seen = b.tokens.ne(0).unsqueeze(1).unsqueeze(2);
  const at::Tensor mask = b.causal.__and__(seen).__or__(at::eye(kTokens, at::kBool));
  const auto heads = [](const at::Tensor& t) {
    return t.reshape({kSamples, kTokens, kHeads, kWidth / kHeads}).transpose(1, 2);
  };
  const at::Tensor normed = at::layer_norm(b.x, {kWidth}, p[0], p[1]);
  const std::vector<at::Tensor> qkv = at::linear(normed, p[2], p[3]).split(kWidth, -1);
  const at::Tensor attended =
      at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), mask);
  const at::Tensor y =
      b.x + at::linear(attended.transpose(1, 2).reshape({kSamples, kTokens, kWidth}), p[4], p[5]).clone();
  const at::Tensor up = at::gelu(at::linear(at::layer_norm(y, {kWidth}, p[6], p[7]), p[8], p[9]), "tanh");
  return y + at::linear(up, p[10], p[11]).clone();
}

void BM_CalledFromCpp(benchmark::State& state) {
  const Block block;
  for (auto _ : state) benchmark::DoNotOptimize(Called(block));
}

void BM_Interpreted(benchmark::State& state) {
  const Block block;
  const auto layer = BuildGraphLayer(block.spec, 0);
  const at::Tensor inputs[] = {block.x, block.data};
  MaskKey key;
  for (auto _ : state) benchmark::DoNotOptimize(layer->Forward(inputs, block.parameters.data(), key));
}

BENCHMARK(BM_CalledFromCpp)->Repetitions(5)->ReportAggregatesOnly();
BENCHMARK(BM_Interpreted)->Repetitions(5)->ReportAggregatesOnly();

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
