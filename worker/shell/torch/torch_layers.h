// Builds the layers of a model as functions of their input and parameters. Private to the adapter of
// LibTorch.
//
// A layer has no state: parameters, running averages among them, come as tensors with each call, so that the
// same layer serves held weights, fetched copies and the reference loop. Outputs are contiguous, or images
// with channels last (channels_last.h). Masks of dropout depend on MaskKey alone. run/model_layers.h
// describes the layers; each kind has one module here.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_LAYERS_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_LAYERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/dropout.h"

namespace weft {

class Layer {
 public:
  virtual ~Layer() = default;
  // Runs the layer. `inputs`: what the layer reads, as LayerCount.inputs lists it, or the data (tokens as
  // int64 [samples, context], or features [samples, inputs]). `parameters` in the order of DescribeLayers.
  // The output of the last layer is the scores [rows, classes], or, of an exported model, the loss. In
  // training there may be columns behind the classes, of minus infinity. An exported layer may read other
  // layers and the data behind them.
  virtual at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* parameters,
                             const MaskKey& key) const = 0;
  // Makes what forwards of so many samples on this device need beside that, if anything, and may wait for the
  // device; so that no forward does. Call outside of jobs.
  virtual absl::Status Prepare(int64_t /*samples*/, c10::Device /*device*/) const { return absl::OkStatus(); }

  // Say what a captured pass with this layer needs (torch_graphs.h); call them behind Prepare.
  // CheckCapturable returns why the layer's work must not be captured, if so; dropout_sites returns at least
  // the number of sites of dropout for which one pass asks for a seed.
  virtual absl::Status CheckCapturable() const { return absl::OkStatus(); }
  virtual int dropout_sites() const { return 2; }
};

// Builds one for each layer, in order.
std::vector<std::unique_ptr<Layer>> BuildLayers(const ModelSpec& model);

// Fills a parameter with its initial value. `tensor`, on the host, has the parameter's size and needs no
// gradient. Failure of the file, where the value is in one.
absl::Status Initialize(const ParameterSpec& parameter, uint64_t seed, int layer, const at::Tensor& tensor);

// Make LibTorch compute alike everywhere: one thread a kernel, deterministic kernels, denormals kept. Call
// PrepareProcess once a process, before other calls; PrepareThread once on every thread that computes.
void PrepareProcess();
void PrepareThread();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_LAYERS_H_
