#include "worker/shell/torch/torch_layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/AutogradState.h>

#include <mutex>

#include "run/model_layers.h"
#include "worker/shell/compute/initial_weights.h"
#include "worker/shell/torch/graph_layer.h"
#include "worker/shell/torch/torch_resnet.h"
#include "worker/shell/torch/wide_product.h"

namespace weft {
namespace {

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

// A module has the sizes of its kind, and, where it drops out, the layer's number for the masks. It reads the
// parameters in the order in which run/model_layers.cc adds them.

class TiedTokens final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor*, const at::Tensor* p, const MaskKey&) const override {
    return p[0].clone();
  }
};

class TokenEmbedding final : public Layer {
 public:
  TokenEmbedding(const TokenEmbeddingSpec& spec, int index) : spec_(spec), index_(index) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor &weight = spec_.tied ? inputs[0] : p[0], &tokens = spec_.tied ? inputs[1] : inputs[0];
    const at::Tensor& position = spec_.tied ? p[0] : p[1];
    // Unless it is tied, the token embedding is float32 in every precision (layer_spec.h).
    const at::Tensor x = at::embedding(weight, tokens).to(position.scalar_type()) + position;
    return Dropout(x, spec_.dropout, key, index_, 0);
  }

 private:
  const TokenEmbeddingSpec spec_;
  const int index_;
};

class TransformerBlock final : public Layer {
 public:
  TransformerBlock(const TransformerBlockSpec& spec, int index) : spec_(spec), index_(index) {}

  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor& x = *inputs;
    const double epsilon = spec_.epsilon;
    const at::Tensor attended = at::linear(Attention(Norm(x, p[0], p[1], epsilon), p[2], p[3]), p[4], p[5]);
    const at::Tensor y = x + Dropout(attended, spec_.dropout, key, index_, 0);
    const at::Tensor expanded =
        at::gelu(at::linear(Norm(y, p[6], p[7], epsilon), p[8], p[9]), spec_.tanh_gelu ? "tanh" : "none");
    return y + Dropout(at::linear(expanded, p[10], p[11]), spec_.dropout, key, index_, 1);
  }

 private:
  // Computes self-attention without the last projection.
  at::Tensor Attention(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    const int64_t samples = x.size(0), tokens = x.size(1), width = x.size(2), heads = spec_.heads;
    const std::vector<at::Tensor> qkv = at::linear(x, weight, bias).split(width, -1);
    auto by_head = [&](const at::Tensor& t) {
      return t.view({samples, tokens, heads, width / heads}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]),
                                                          /*attn_mask=*/{}, /*dropout_p=*/0.0, spec_.causal);
    return y.transpose(1, 2).reshape({samples, tokens, width});
  }

  const TransformerBlockSpec spec_;
  const int index_;
};

class TokenScores final : public Layer {
 public:
  explicit TokenScores(const TokenScoresSpec& spec) : spec_(spec) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor &x = spec_.tied ? inputs[1] : inputs[0], &projection = spec_.tied ? inputs[0] : p[2];
    const at::Tensor normed = Norm(x, p[0], p[1], spec_.epsilon);
    const at::Tensor scores =
        (x.is_cuda() ? WideProduct(normed, projection) : at::linear(normed, projection)).flatten(0, 1);
    return key.training ? scores : scores.narrow(1, 0, projection.size(0));
  }

 private:
  const TokenScoresSpec spec_;
};

class PatchEmbedding final : public Layer {
 public:
  explicit PatchEmbedding(const PatchEmbeddingSpec& spec) : spec_(spec) {}
  at::Tensor Forward(const at::Tensor* images, const at::Tensor* p, const MaskKey&) const override {
    const int64_t samples = images->size(0), patch = spec_.patch, side = spec_.size / patch;
    // A convolution with the patch's size as stride is one product: patches are disjoint.
    const at::Tensor patches = images->view({samples, spec_.channels, side, patch, side, patch})
                                   .permute({0, 2, 4, 1, 3, 5})
                                   .reshape({samples, side * side, spec_.channels * patch * patch});
    const at::Tensor tokens = at::linear(patches, p[0].flatten(1), p[1]);
    return at::cat({p[2].expand({samples, 1, spec_.width}), tokens}, 1) + p[3];
  }

 private:
  const PatchEmbeddingSpec spec_;
};

class ClassTokenScores final : public Layer {
 public:
  explicit ClassTokenScores(const ClassTokenScoresSpec& spec) : spec_(spec) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(Norm(inputs->select(1, 0), p[0], p[1], spec_.epsilon), p[2], p[3]);
  }

 private:
  const ClassTokenScoresSpec spec_;
};

class Linear final : public Layer {
 public:
  Linear(const LinearSpec& spec, int index) : spec_(spec), index_(index) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor x = spec_.first_column.has_value()
                             ? inputs->narrow(1, *spec_.first_column, spec_.in).contiguous()
                             : *inputs;
    const at::Tensor y = at::linear(x, p[0], p[1]);
    return spec_.gelu ? Dropout(at::gelu(y), spec_.dropout, key, index_, 0) : y;
  }

 private:
  const LinearSpec spec_;
  const int index_;
};

class Gelu final : public Layer {
 public:
  Gelu(const GeluSpec& spec, int index) : spec_(spec), index_(index) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor*, const MaskKey& key) const override {
    return Dropout(at::gelu(*inputs), spec_.dropout, key, index_, 0);
  }

 private:
  const GeluSpec spec_;
  const int index_;
};

class Scores final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(*inputs, p[0], p[1]);
  }
};

class JoinedScores final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(inputs[0], p[0], p[2]) + at::linear(inputs[1], p[1]);
  }
};

// Build the module of a kind; torch_resnet.h has those of residual networks, graph_layer.h exported ones.
// `index` is the layer's number.
std::unique_ptr<Layer> Build(const TiedTokensSpec&, int) { return std::make_unique<TiedTokens>(); }
std::unique_ptr<Layer> Build(const TokenEmbeddingSpec& spec, int index) {
  return std::make_unique<TokenEmbedding>(spec, index);
}
std::unique_ptr<Layer> Build(const PatchEmbeddingSpec& spec, int) {
  return std::make_unique<PatchEmbedding>(spec);
}
std::unique_ptr<Layer> Build(const TransformerBlockSpec& spec, int index) {
  return std::make_unique<TransformerBlock>(spec, index);
}
std::unique_ptr<Layer> Build(const TokenScoresSpec& spec, int) { return std::make_unique<TokenScores>(spec); }
std::unique_ptr<Layer> Build(const ClassTokenScoresSpec& spec, int) {
  return std::make_unique<ClassTokenScores>(spec);
}
std::unique_ptr<Layer> Build(const LinearSpec& spec, int index) {
  return std::make_unique<Linear>(spec, index);
}
std::unique_ptr<Layer> Build(const GeluSpec& spec, int index) { return std::make_unique<Gelu>(spec, index); }
std::unique_ptr<Layer> Build(const ScoresSpec&, int) { return std::make_unique<Scores>(); }
std::unique_ptr<Layer> Build(const JoinedScoresSpec&, int) { return std::make_unique<JoinedScores>(); }
std::unique_ptr<Layer> Build(const StemSpec& spec, int) { return BuildStem(spec); }
std::unique_ptr<Layer> Build(const ResidualBlockSpec& spec, int) { return BuildResidualBlock(spec); }
std::unique_ptr<Layer> Build(const AveragedScoresSpec&, int) { return BuildAveragedScores(); }
std::unique_ptr<Layer> Build(const ExportedLayerSpec& spec, int index) {
  return BuildGraphLayer(spec, index);
}

}  // namespace

std::vector<std::unique_ptr<Layer>> BuildLayers(const ModelSpec& model) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (const LayerSpec& layer : DescribeLayers(model)) {
    const auto index = static_cast<int>(layers.size());
    layers.push_back(std::visit([index](const auto& spec) { return Build(spec, index); }, layer.kind));
  }
  return layers;
}

absl::Status Initialize(const ParameterSpec& parameter, uint64_t seed, int layer, const at::Tensor& tensor) {
  if (!parameter.file.empty()) {
    const absl::StatusOr<InitialWeights> weights = InitialWeights::Open(parameter.file);
    if (!weights.ok()) return weights.status();
    return weights->Read(parameter.model_name, parameter.size, tensor.mutable_data_ptr<float>());
  }
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
  return absl::OkStatus();
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
    // MKL chooses the kernels of exp, log, tanh and others in the first call. Its mkl_vml_serv_cpu_detect
    // stores the number of the processor where the number of the kernels follows, and other threads read it
    // without a lock: one that is preempted there lets another compute with a kernel of half the digits.
    at::exp(at::ones({1}));
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
