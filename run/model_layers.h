// Describes a model as layers: the kind, inputs, parameters and costs of each, without any tensor.
//
// Layers stand in an order in which each reads earlier ones only; in most models they are a chain. Cutting
// into stages (stage_cut.h), predicting memory and bytes, checking a run file, the places of parameters
// (worker/shell/compute/parameters.h) and the modules of LibTorch (worker/shell/torch/torch_layers.h) all
// follow from these descriptions. Pure.
#ifndef WEFT_RUN_MODEL_LAYERS_H_
#define WEFT_RUN_MODEL_LAYERS_H_

#include <vector>

#include "run/layer_spec.h"
#include "run/model_spec.h"
#include "run/precision.h"

namespace weft {

// Returns the model's layers, in order.
std::vector<LayerSpec> DescribeLayers(const ModelSpec& model);

// Counts the same layers. Bytes are those of computing in `precision`.
std::vector<LayerCount> CountLayers(const ModelSpec& model, Precision precision = Precision::kFloat32);

}  // namespace weft

#endif  // WEFT_RUN_MODEL_LAYERS_H_
