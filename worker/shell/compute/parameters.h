// Places the parameters of a model's layers (run/layer_spec.h) in the flat buffer of a stage, with their
// names in a checkpoint and the seeds of their initial values. It needs no tensor and no LibTorch.
//
// The name of a parameter in a checkpoint is `stage<ss>.<layer>.<parameter>`, as
// `stage01.block0.attention.qkv.weight`, or `stage<ss>.<name in the state_dict>` for an exported model. In a
// stage's buffer the parameters follow one another in the order of layers and of declaration: first those
// that are trained and decay, then those that are trained and do not, then the statistics, each at a multiple
// of kAlignElements; the gaps between are zero. So an update of the buffer is one range of each kind.
#ifndef WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_
#define WEFT_WORKER_SHELL_COMPUTE_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "run/layer_spec.h"
#include "run/run_spec.h"

namespace weft {

struct ParameterSlot {
  ParameterSpec parameter;
  int layer = 0;           // number in the whole chain
  std::string layer_name;  // name of that layer
  int64_t offset = 0;      // in the flat buffer, in elements
  bool decays = true;      // weights decay where the optimizer has a decay (weight_decay.h)
};

struct StageLayout {
  static constexpr int64_t kAlignElements = kAlignedElements;
  int stage = 0;
  int first_layer = 0, end_layer = 0;
  std::vector<LayerOutput> inputs;  // sizes of each input from other stages, ascending
  bool reads_data = false;
  LayerOutput output;
  int consumers = 0;  // stages that read the output
  // Inputs of each layer, by number: first the stage's inputs, then the data, then the stage's own layers.
  std::vector<std::vector<int>> reads;
  std::vector<int> last_reader;      // by these numbers: the stage's layer, from 0, that reads it last
  std::vector<ParameterSlot> slots;  // in the order of layers and of declaration
  // Begins of what is trained and does not decay, and of the statistics; the end of what is before, if there
  // are none.
  int64_t no_decay_begin = 0, statistics_begin = 0;
  // The statistics' momenta, ascending: each from its start to the next one's.
  struct Momentum {
    int64_t begin;
    float momentum;
  };
  std::vector<Momentum> momenta;
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
