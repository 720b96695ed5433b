// The parameters of a model's layers: names, sizes, how each begins, and where it lies in a stage's flat
// buffer. No tensor, no LibTorch.
//
// The name of a parameter in a checkpoint is `stage<ss>.<layer>.<parameter>`, as
// `stage01.block0.attention.qkv.weight`. In a stage's buffer the parameters follow one another in the order
// of layers and of declaration, first all that are trained, then the statistics, each at a multiple of
// kAlignElements; what lies between is zero. So an update of the buffer is one range of each kind.
#ifndef WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_
#define WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/run/run_spec.h"

namespace weft {

struct ParameterInit {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform } kind = Kind::kConstant;
  double value = 0;  // the constant, the standard deviation, or the bound of both sides
};

struct ParameterSpec {
  enum class Kind : uint8_t {
    kTrained,
    // A running average of what micro-batches measure (batch_norm.h). Its "gradient" is what the micro-batch
    // measured, and travels, waits and is summed as one; only the update differs (stage_update.h).
    kStatistic,
  };
  std::string name;  // within its layer
  std::vector<int64_t> size;
  ParameterInit init;
  Kind kind = Kind::kTrained;
  // Layers read it in float32 whatever they compute in (precision.h), and so is its gradient: a token
  // embedding, whose rows gather one gradient for each time a token occurs, and batch norms, whose kernels
  // want it, on every device.
  bool wide = false;
  bool is_wide() const { return wide || kind == Kind::kStatistic; }
  int64_t elements() const;
};

struct LayerSpec {
  std::string name;  // as in proto/run/model_layers.h
  std::vector<ParameterSpec> parameters;
};

// One for each layer of the chain, in order.
std::vector<LayerSpec> DescribeLayers(const ModelSpec& model);

struct ParameterSlot {
  ParameterSpec parameter;
  int layer = 0;           // in the whole chain
  std::string layer_name;  // of that layer
  int64_t offset = 0;      // in the flat buffer, in elements
};

struct StageLayout {
  static constexpr int64_t kAlignElements = 16;  // 64 bytes of float32
  int stage = 0;
  int first_layer = 0, end_layer = 0;
  // What the stage reads of other stages, ascending: sizes of a sample of each.
  std::vector<std::vector<int64_t>> inputs;
  bool reads_data = false;
  std::vector<int64_t> output;  // sizes of a sample; none for the last stage
  int consumers = 0;            // stages that read the output
  // Of each layer, what it reads: by number, first the inputs, then the data, then the stage's own layers.
  std::vector<std::vector<int>> reads;
  std::vector<int> last_reader;      // by these numbers: the stage's layer, from 0, that reads it last
  std::vector<ParameterSlot> slots;  // in the order of layers and of declaration
  int64_t statistics_begin = 0;      // where in the flat buffer they begin; `elements` if there are none
  int64_t elements = 0;              // of the flat buffer, a multiple of kAlignElements
};

// Requires 0 <= stage < run.stages().
StageLayout LayOutStage(const RunSpec& run, int stage);

std::string CheckpointName(int stage, const ParameterSlot& slot);

// Seeds that depend on their arguments only: not on the process, the cut or the order of calls.
uint64_t ParameterSeed(uint64_t seed, int layer, absl::string_view parameter);
uint64_t MaskSeed(uint64_t seed, int step, int microbatch, int layer, int site);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_
