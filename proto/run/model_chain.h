// A model as a chain of layers, counted: floating-point operations, parameters and output of each layer,
// without any tensor.
//
// It is what cutting into stages, predicting memory and bytes, and checking a run file need; the compute
// adapter builds the same chain of layers, in the same order and with the same parameter counts (a test
// compares them). Pure.
#ifndef WEFT_PROTO_RUN_MODEL_CHAIN_H_
#define WEFT_PROTO_RUN_MODEL_CHAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/run/run_spec.h"

namespace weft {

struct LayerCount {
  std::string name;             // "embedding", "block0", .., "head"; "linear0", ..
  double forward_flops = 0;     // a sample; a multiply-add counts 2
  int64_t parameters = 0;       // elements
  int64_t output_elements = 0;  // a sample; 0 for the last layer, whose output is the loss
  // Bytes that a forward leaves for its backward: its output and what else is saved, its input not. Those of
  // a sample, and what the alignment of tensors adds for a micro-batch at most.
  int64_t left_bytes = 0, left_alignment = 0;
};

std::vector<LayerCount> CountLayers(const ModelSpec& model);

// Cuts the chain into `stages` consecutive parts so that the largest part's FLOPs are least (exact, by
// dynamic programming; ties cut early). Requires 1 <= stages <= layers.size(). Returns the number of layers
// of each stage.
std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_MODEL_CHAIN_H_
