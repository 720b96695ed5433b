// Describes the parameters of a model's layers: names, sizes, initial values, and places in a stage's flat
// buffer. No tensor, no LibTorch.
//
// The name of a parameter in a checkpoint is `stage<ss>.<layer>.<parameter>`, as
// `stage01.block0.attention.qkv.weight`. In a stage's buffer the parameters follow one another in the order
// of layers and of declaration, first all that are trained, then the statistics, each at a multiple of
// kAlignElements; the gaps between are zero. So an update of the buffer is one range of each kind.
#ifndef WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_
#define WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "run/run_spec.h"

namespace weft {

struct ParameterInit {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform } kind = Kind::kConstant;
  double value = 0;  // the constant, the standard deviation, or the bound of both sides
};

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
  bool is_wide() const { return wide || kind == Kind::kStatistic; }
  int64_t elements() const;
};

struct LayerSpec {
  std::string name;  // as in run/model_layers.h
  std::vector<ParameterSpec> parameters;
};

// Returns one entry for each layer of the chain, in order.
std::vector<LayerSpec> DescribeLayers(const ModelSpec& model);

struct ParameterSlot {
  ParameterSpec parameter;
  int layer = 0;           // number in the whole chain
  std::string layer_name;  // name of that layer
  int64_t offset = 0;      // in the flat buffer, in elements
};

struct StageLayout {
  static constexpr int64_t kAlignElements = 16;  // 64 bytes of float32
  int stage = 0;
  int first_layer = 0, end_layer = 0;
  // Sizes of a sample of each input from other stages, ascending.
  std::vector<std::vector<int64_t>> inputs;
  bool reads_data = false;
  std::vector<int64_t> output;  // sizes of a sample; none for the last stage
  int consumers = 0;            // stages that read the output
  // Inputs of each layer, by number: first the stage's inputs, then the data, then the stage's own layers.
  std::vector<std::vector<int>> reads;
  std::vector<int> last_reader;      // by these numbers: the stage's layer, from 0, that reads it last
  std::vector<ParameterSlot> slots;  // in the order of layers and of declaration
  // Begin of the statistics in the flat buffer; `elements` if there are none.
  int64_t statistics_begin = 0;
  int64_t elements = 0;  // size of the flat buffer, a multiple of kAlignElements
};

// Lays out a stage. Requires 0 <= stage < run.stages().
StageLayout LayOutStage(const RunSpec& run, int stage);

std::string CheckpointName(int stage, const ParameterSlot& slot);

// Return seeds that depend on their arguments only: not on the process, the cut or the order of calls.
uint64_t ParameterSeed(uint64_t seed, int layer, absl::string_view parameter);
uint64_t MaskSeed(uint64_t seed, int step, int microbatch, int layer, int site);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_
