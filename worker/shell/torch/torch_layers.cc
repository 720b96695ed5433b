#include "worker/shell/torch/torch_layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/AutogradState.h>

#include <mutex>

#include "worker/shell/torch/torch_resnet.h"

namespace weft {
namespace {

// The constants of the publications.
constexpr double kGptEpsilon = 1e-5, kVitEpsilon = 1e-6;

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

class Embedding final : public Layer {
 public:
  Embedding(int index, double dropout) : index_(index), dropout_(dropout) {}
  at::Tensor Forward(const at::Tensor* tokens, const at::Tensor* p, const MaskKey& key) const override {
    // The token embedding is float32 in every precision (parameters.h).
    const at::Tensor x = at::embedding(p[0], *tokens).to(p[1].scalar_type()) + p[1];
    return Dropout(x, dropout_, key, index_, 0);
  }

 private:
  const int index_;
  const double dropout_;
};

// A transformer block: [samples, tokens, width] to the same.
class Block final : public Layer {
 public:
  struct Kind {
    bool causal;  // a token attends to those before it only
    double epsilon;
  };
  Block(int index, int heads, double dropout, Kind kind)
      : index_(index), heads_(heads), dropout_(dropout), kind_(kind) {}

  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor& x = *inputs;
    const double epsilon = kind_.epsilon;
    const at::Tensor attended = at::linear(Attention(Norm(x, p[0], p[1], epsilon), p[2], p[3]), p[4], p[5]);
    const at::Tensor y = x + Dropout(attended, dropout_, key, index_, 0);
    const at::Tensor expanded = at::gelu(at::linear(Norm(y, p[6], p[7], epsilon), p[8], p[9]));
    return y + Dropout(at::linear(expanded, p[10], p[11]), dropout_, key, index_, 1);
  }

 private:
  // Computes self-attention without the last projection.
  at::Tensor Attention(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    const int64_t samples = x.size(0), tokens = x.size(1), width = x.size(2);
    const std::vector<at::Tensor> qkv = at::linear(x, weight, bias).split(width, -1);
    auto by_head = [&](const at::Tensor& t) {
      return t.view({samples, tokens, heads_, width / heads_}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]),
                                                          /*attn_mask=*/{}, /*dropout_p=*/0.0, kind_.causal);
    return y.transpose(1, 2).reshape({samples, tokens, width});
  }

  const int index_;
  const int64_t heads_;
  const double dropout_;
  const Kind kind_;
};

class Head final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(Norm(*inputs, p[0], p[1], kGptEpsilon), p[2]).flatten(0, 1);
  }
};

// Turns an image into tokens: a class token of its own, and one for each square patch, each with its
// position.
class PatchEmbedding final : public Layer {
 public:
  explicit PatchEmbedding(const VitSpec& model) : model_(model) {}
  at::Tensor Forward(const at::Tensor* images, const at::Tensor* p, const MaskKey&) const override {
    const int64_t samples = images->size(0), patch = model_.patch, side = model_.size / patch;
    // A convolution with the patch's size as stride is one product: patches are disjoint.
    const at::Tensor patches = images->view({samples, model_.channels, side, patch, side, patch})
                                   .permute({0, 2, 4, 1, 3, 5})
                                   .reshape({samples, side * side, model_.channels * patch * patch});
    const at::Tensor tokens = at::linear(patches, p[0].flatten(1), p[1]);
    return at::cat({p[2].expand({samples, 1, model_.width}), tokens}, 1) + p[3];
  }

 private:
  const VitSpec model_;
};

// Computes scores from the class token alone.
class ClassTokenHead final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(Norm(inputs->select(1, 0), p[0], p[1], kVitEpsilon), p[2], p[3]);
  }
};

// The columns of the input that a layer reads: [begin, begin + count), or all.
struct Columns {
  int64_t begin = 0, count = 0;
};

class Linear final : public Layer {
 public:
  Linear(int index, double dropout, Columns columns = {})
      : index_(index), dropout_(dropout), columns_(columns) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor x =
        columns_.count == 0 ? *inputs : inputs->narrow(1, columns_.begin, columns_.count).contiguous();
    return Dropout(at::gelu(at::linear(x, p[0], p[1])), dropout_, key, index_, 0);
  }

 private:
  const int index_;
  const double dropout_;
  const Columns columns_;
};

class Gelu final : public Layer {
 public:
  Gelu(int index, double dropout) : index_(index), dropout_(dropout) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor*, const MaskKey& key) const override {
    return Dropout(at::gelu(*inputs), dropout_, key, index_, 0);
  }

 private:
  const int index_;
  const double dropout_;
};

// A linear layer alone; at the end of the chain its outputs are the scores.
class Scores final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(*inputs, p[0], p[1]);
  }
};

// Computes scores from two towers: one product each, so that each tower's gradient is whole by itself,
// wherever the stages are cut.
class JoinedScores final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(inputs[0], p[0], p[2]) + at::linear(inputs[1], p[1]);
  }
};

std::vector<std::unique_ptr<Layer>> Build(const GptSpec& m) {
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(std::make_unique<Embedding>(0, m.dropout));
  for (int i = 0; i < m.layers; ++i)
    layers.push_back(std::make_unique<Block>(i + 1, m.heads, m.dropout, Block::Kind{true, kGptEpsilon}));
  layers.push_back(std::make_unique<Head>());
  return layers;
}

std::vector<std::unique_ptr<Layer>> Build(const VitSpec& m) {
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(std::make_unique<PatchEmbedding>(m));
  for (int i = 0; i < m.layers; ++i) {
    layers.push_back(std::make_unique<Block>(i + 1, m.heads, 0, Block::Kind{false, kVitEpsilon}));
  }
  layers.push_back(std::make_unique<ClassTokenHead>());
  return layers;
}

std::vector<std::unique_ptr<Layer>> Build(const ResNetSpec& m) { return BuildResNet(m); }

std::vector<std::unique_ptr<Layer>> Build(const MlpSpec& m) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (int i = 0; i + 1 < m.layers; ++i) {
    const auto index = static_cast<int>(layers.size());
    if (m.gelu_apart) {
      layers.push_back(std::make_unique<Scores>());
      layers.push_back(std::make_unique<Gelu>(index + 1, m.dropout));
    } else {
      layers.push_back(std::make_unique<Linear>(index, m.dropout));
    }
  }
  layers.push_back(std::make_unique<Scores>());
  return layers;
}

std::vector<std::unique_ptr<Layer>> Build(const TwoTowerSpec& m) {
  std::vector<std::unique_ptr<Layer>> layers;
  const auto append = [&](Columns columns) {
    layers.push_back(std::make_unique<Linear>(static_cast<int>(layers.size()), m.dropout, columns));
  };
  const int64_t half = m.stem == 0 ? m.inputs / 2 : 0;
  for (int i = 0; i < m.stem; ++i) append({});
  for (const int tower : {0, 1}) {
    for (int i = 0; i < m.layers; ++i) append(i == 0 ? Columns{tower * half, half} : Columns{});
  }
  layers.push_back(std::make_unique<JoinedScores>());
  return layers;
}

}  // namespace

std::vector<std::unique_ptr<Layer>> BuildLayers(const ModelSpec& model) {
  return std::visit([](const auto& m) { return Build(m); }, model);
}

at::Tensor Loss(const at::Tensor& scores, const at::Tensor& targets) {
  return at::cross_entropy_loss(scores.to(c10::kFloat), targets);
}

void Initialize(const ParameterSpec& parameter, uint64_t seed, int layer, at::Tensor tensor) {
  at::NoGradGuard no_grad;
  const uint64_t own = ParameterSeed(seed, layer, parameter.name);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(own);
  const double value = parameter.init.value;
  switch (parameter.init.kind) {
    case ParameterInit::Kind::kConstant:
      tensor.fill_(value);
      break;
    case ParameterInit::Kind::kNormal:
      tensor.normal_(0, value, generator);
      break;
    case ParameterInit::Kind::kUniform:
      tensor.uniform_(-value, value, generator);
      break;
  }
}

void PrepareProcess() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::set_num_threads(1);
    at::set_num_interop_threads(1);
    at::globalContext().setFlushDenormal(false);
    at::globalContext().setUserEnabledMkldnn(false);  // a run may switch it on (PrepareRun)
    at::globalContext().setUserEnabledNNPACK(false);  // has threads of its own
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    // Otherwise every new tensor is filled with NaN, which costs a pass over memory and is for debugging.
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  });
}

void PrepareThread() {
  thread_local const bool prepared = [] {
    at::set_num_threads(1);  // OpenMP keeps the number by thread
    // A backward runs where it was called, on any device: its memory is charged by thread.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    return true;
  }();
  (void)prepared;
}

}  // namespace weft
