// Builds layers of exported models (run/exported_model.h): each runs its graph of ATen operations through
// LibTorch's dispatcher, so that LibTorch records the graph for the backward as it does for built-in layers.
//
// A layer reads outputs of other layers, and the data: the bytes of all fields, of which it takes its own.
// One that reads no layer gets the data for the number of its samples. Operations that depend on constants
// and sizes alone run once. A forward without a graph records one too, and drops it layer by layer: kernels
// may be chosen by whether gradients are recorded, and a forward that is run again must have the same bits.
// An evaluation, which has no backward, records none.
// Dropout is Dropout of dropout.h.
//
// Private to the adapter of LibTorch. Threads: as Layer. Failure: CheckGraphs says beforehand whether
// LibTorch takes the graphs; a forward throws c10::Error with the operation and the line of the model's code.
#ifndef WEFT_WORKER_SHELL_TORCH_GRAPH_LAYER_H_
#define WEFT_WORKER_SHELL_TORCH_GRAPH_LAYER_H_

#include <memory>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

// `index` is the layer's number, for the masks of dropout.
std::unique_ptr<Layer> BuildGraphLayer(const ExportedLayerSpec& spec, int index);

// Checks that LibTorch has the operations of the run's model with these arguments, and that sizes fit: the
// graphs run once on tensors without bytes. OK for built-in models. InvalidArgument names layer, operation
// and line.
absl::Status CheckGraphs(const RunSpec& run);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_GRAPH_LAYER_H_
