// Describes one layer of a model as a value: its kind with its sizes, its inputs, its parameters and its
// costs.
//
// A kind is a struct of sizes. model_layers.cc lists the operations of each kind, and the layers of each
// model. Parameters and costs follow from the operations, and the adapter of LibTorch builds the module of
// the same kind (worker/shell/torch/torch_layers.h). So a layer is described once. Pure; no tensor.
#ifndef WEFT_RUN_LAYER_SPEC_H_
#define WEFT_RUN_LAYER_SPEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "run/exported_model.h"
#include "run/resnet.h"

namespace weft {

struct ParameterInit {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform } kind = Kind::kConstant;
  double value = 0;  // the constant, the standard deviation, or the bound of both sides
};
inline constexpr ParameterInit kZeroInit{ParameterInit::Kind::kConstant, 0};

// Part of the micro-batches' measurements in a statistic's next average, of built-in batch norms.
inline constexpr float kStatisticMomentum = 0.1f;

struct ParameterSpec {
  enum class Kind : uint8_t {
    kTrained,
    // A running average of micro-batches' measurements (batch_norm.h). Its "gradient" is the micro-batch's
    // measurement, and travels, waits and is summed as one; only the update differs (stage_update.h).
    kStatistic,
  };
  std::string name;  // within its layer
  std::vector<int64_t> size;
  ParameterInit init;
  Kind kind = Kind::kTrained;
  // True if layers read it in float32 whatever they compute in (precision.h), and its gradient is float32,
  // too: a token embedding, whose rows gather one gradient for each time a token occurs, and batch norms,
  // whose kernels want it, on every device.
  bool wide = false;
  std::string model_name = {};  // name in the whole model; "" for LAYER.NAME
  // Weights that hold the initial value by that name (worker/shell/compute/initial_weights.h); "" if `init`
  // says it.
  std::string file = {};
  float momentum = kStatisticMomentum;  // of a statistic
  bool is_wide() const { return wide || kind == Kind::kStatistic; }
  int64_t elements() const;
};

// ---- the kinds of layers

// Hands out a token embedding that two layers read.
struct TiedTokensSpec {
  int64_t vocabulary = 0, width = 0;
};
// Turns tokens into vectors, each with its position.
struct TokenEmbeddingSpec {
  int64_t vocabulary = 0, context = 0, width = 0;
  double dropout = 0;
  bool tied = false;  // reads the token embedding from the layer before
};
// Turns an image into tokens: a class token of its own, and one for each square patch, each with its
// position.
struct PatchEmbeddingSpec {
  int64_t channels = 0, size = 0, patch = 0, width = 0;
  int64_t patches() const { return (size / patch) * (size / patch); }
};
// A transformer block: [samples, tokens, width] to the same.
struct TransformerBlockSpec {
  int64_t tokens = 0, width = 0, heads = 0;
  int blocks = 1;       // in the model; the initial weights depend on it
  bool causal = false;  // a token attends to those before it only
  double epsilon = 0;   // of the norms
  double dropout = 0;
  bool tanh_gelu = false;
};
// Computes the scores of each token's successor.
struct TokenScoresSpec {
  int64_t context = 0, width = 0, vocabulary = 0;
  double epsilon = 0;
  bool tied = false;  // reads the projection from its first input
};
// Computes scores from the class token alone.
struct ClassTokenScoresSpec {
  int64_t tokens = 0, width = 0, classes = 0;
  double epsilon = 0;
};
// A linear layer, with a GELU and dropout behind it or without.
struct LinearSpec {
  int64_t in = 0, out = 0;
  bool gelu = true;
  double dropout = 0;                   // behind the GELU
  std::optional<int64_t> first_column;  // of the `in` columns that it reads; none for the whole input
};
struct GeluSpec {
  int64_t width = 0;
  double dropout = 0;
};
// A linear layer at the end of the model.
struct ScoresSpec {
  int64_t in = 0, classes = 0;
};
// Computes scores from two inputs of one width: one product each, so that each input's gradient is whole by
// itself, wherever the stages are cut.
struct JoinedScoresSpec {
  int64_t width = 0, classes = 0;
};
// The first convolution of a residual network, with a ReLU.
struct StemSpec {
  NormedConvolution convolution;
  bool pools = false;  // ends with a maximum over 3x3 with stride 2, padded by 1
  int64_t side = 0;    // of its output
};
struct ResidualBlockSpec {
  ResNetBlock plan;
};
// Computes scores from the average of each channel over the image.
struct AveragedScoresSpec {
  int64_t features = 0, side = 0, classes = 0;
};
// A layer of the user's own model (exported_model.h).
struct ExportedLayerSpec {
  std::shared_ptr<const ExportedModel> model;
  std::string weights;  // file of its constants
  std::string initial;  // weights in the place of that file's parameters; "" for none
  int layer = 0;        // its number
  // Returns where parameters have their initial values.
  const std::string& initial_or_own() const { return initial.empty() ? weights : initial; }
  const ExportedLayer& graph() const { return model->layers[layer]; }
  // Returns true if it reads fields; a layer that reads no other one gets the data too, for its samples.
  bool reads_data() const { return graph().layers.empty() || !graph().fields.empty(); }
};

using LayerKind =
    std::variant<TiedTokensSpec, TokenEmbeddingSpec, PatchEmbeddingSpec, TransformerBlockSpec,
                 TokenScoresSpec, ClassTokenScoresSpec, LinearSpec, GeluSpec, ScoresSpec, JoinedScoresSpec,
                 StemSpec, ResidualBlockSpec, AveragedScoresSpec, ExportedLayerSpec>;

struct LayerSpec {
  std::string name;         // "embedding", "block0", .., "head"; "linear0", ..
  std::vector<int> inputs;  // layers that it reads, ascending
  LayerKind kind;
  std::vector<ParameterSpec> parameters = {};
  // Returns true if it gets the data: because it reads no other layer, or, an embedding or an exported one,
  // beside them.
  bool reads_data() const;
};

// Returns the parameter's name in the model, as checkpoints have it behind the stage.
std::string NameInModel(const std::string& layer, const ParameterSpec& parameter);

// The sizes of a layer's output: of a sample, or of a micro-batch of any size where the output has no
// samples.
struct LayerOutput {
  std::vector<int64_t> sizes;  // none for the last layer, whose output is the loss
  bool by_sample = true;
  // Returns the elements of an output for so many samples; 0 for the last layer.
  int64_t elements(int64_t samples) const;
};

// A tensor that a forward keeps for its backward.
struct KeptTensor {
  int64_t sample_bytes = 0;  // of each sample of the micro-batch
  int64_t fixed_bytes = 0;   // of a micro-batch of any size
  // A part of each sample's data, which is copied out of them. For a single sample it is a view, and keeps
  // the whole data alive: so many bytes, once for all layers that read them.
  int64_t data_bytes = 0;
};

// The costs of a layer, without any tensor.
struct LayerCount {
  std::string name;         // as LayerSpec
  std::vector<int> inputs;  // as LayerSpec
  bool reads_data = false;
  double forward_flops = 0;  // operations per sample; a multiply-add counts 2
  int64_t parameters = 0;    // trained elements
  LayerOutput output;
  // Tensors that a forward keeps for its backward: its output and other saved tensors, without its input.
  std::vector<KeptTensor> kept;
  // Tensors that a forward on a GPU keeps in addition at most.
  std::vector<KeptTensor> kept_on_gpu;
  // Elements that lie with the parameters and are not trained: running averages of batch norms.
  int64_t statistics = 0;
  // The elements that both take in a flat buffer, where each tensor begins at a block.
  int64_t held_parameters = 0, held_statistics = 0;
  // Bytes of the gradients of all its parameters as a backward makes them, one tensor for each, and of the
  // largest of them.
  int64_t gradient_bytes = 0, largest_gradient_bytes = 0;
  // Bytes of tensors that are there once on each rank that computes the layer: buffers and frozen parameters.
  int64_t constant_bytes = 0;
  // Bytes that one operation takes while it runs, besides its inputs and outputs. `work_bytes` are those of a
  // sample, `work_fixed` those of a micro-batch of any size (copies of weights in another layout).
  int64_t work_bytes = 0, work_fixed = 0;
};

// Bytes as the workers' allocator counts them: blocks of whole 64 bytes.
inline constexpr int64_t kTensorAlignment = 64;
constexpr int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}
// The elements at whose multiples tensors begin in a flat buffer of float32: those of a block.
inline constexpr int64_t kAlignedElements = kTensorAlignment / 4;

// Returns the bytes that the forwards of the layers [first, end) of one stage keep together of a micro-batch
// of so many samples, to the byte (but for exported models, whose exporter bounds them).
int64_t KeptTensorBytes(const std::vector<LayerCount>& layers, int first, int end, int64_t samples);
// Returns the bytes that they keep in addition on a GPU, at most.
int64_t BytesKeptOnGpu(const std::vector<LayerCount>& layers, int first, int end, int64_t samples);

// Returns the number of columns in which a GPU computes the scores of so many classes: as many as its matrix
// units need for whole accesses, where those are few beside the classes.
constexpr int64_t ScoreColumnsOnGpu(int64_t classes) {
  constexpr int64_t kColumns = 64, kClassesOfOneMore = 32;
  const int64_t columns = (classes + kColumns - 1) / kColumns * kColumns;
  return (columns - classes) * kClassesOfOneMore <= classes ? columns : classes;
}

}  // namespace weft

#endif  // WEFT_RUN_LAYER_SPEC_H_
