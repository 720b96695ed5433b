#include "worker/shell/torch/torch_stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdlib>
#include <utility>

#include "worker/shell/torch/cross_entropy.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {
namespace {

DataType WeftType(c10::ScalarType type) {
  for (const DataType t : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt64, DataType::kUInt8}) {
    if (TorchType(t) == type) return t;
  }
  std::abort();
}

c10::Storage Unbound(int64_t bytes, c10::Device device) {
  return {c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), at::DataPtr(nullptr, device),
          /*allocator=*/nullptr, /*resizable=*/false};
}

std::vector<int64_t> Strides(const std::vector<int64_t>& size) {
  std::vector<int64_t> strides(size.size());
  int64_t stride = 1;
  for (size_t i = size.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= size[i];
  }
  return strides;
}

// Returns the stage's output, or its loss, by the model itself or from the targets.
at::Tensor RunLayers(const std::vector<std::unique_ptr<Layer>>& layers, const StageLayout& layout,
                     const std::vector<at::Tensor>& inputs, const at::Tensor& targets, const MaskKey& key,
                     const at::Tensor* parameters) {
  // Values are numbered as layout.reads has them. A layer's output goes when its last reader has run.
  const size_t own = layout.inputs.size() + 1;
  std::vector<at::Tensor> values(inputs.begin(), inputs.end());
  values.resize(own + layout.reads.size());
  size_t slot = 0;
  std::vector<at::Tensor> read;
  for (size_t i = 0; i < layout.reads.size(); ++i) {
    const int layer = layout.first_layer + static_cast<int>(i);
    read.clear();
    for (const int number : layout.reads[i]) read.push_back(values[number]);
    values[own + i] = layers[layer]->Forward(read.data(), parameters + slot, key);
    for (const int number : layout.reads[i]) {
      if (layout.last_reader[number] == static_cast<int>(i)) values[number].reset();
    }
    while (slot < layout.slots.size() && layout.slots[slot].layer == layer) ++slot;
  }
  read.clear();
  // Tensors that leave the stage are contiguous.
  return targets.defined() ? Loss(values.back(), targets, key.math) : values.back().contiguous();
}

PassOutput OutputOf(const at::Tensor& end, const StageLayout& layout) {
  PassOutput output;
  (layout.consumers == 0 ? output.loss : output.activation) = end;
  return output;
}

}  // namespace

c10::ScalarType TorchType(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return c10::ScalarType::Float;
    case DataType::kBFloat16:
      return c10::ScalarType::BFloat16;
    case DataType::kInt64:
      return c10::ScalarType::Long;
    case DataType::kUInt8:
      return c10::ScalarType::Byte;
  }
  std::abort();
}

// Makes the tensors. Statistics are read without narrowing.
StageWeights::StageWeights(const StageLayout& layout, RankDevice& device, Precision precision)
    : device_(device),
      narrow_elements_(precision == Precision::kBFloat16 && !layout.slots.empty() ? layout.statistics_begin
                                                                                  : 0),
      slots_(layout.slots),
      storage_(Unbound(layout.elements * int64_t{sizeof(float)}, device.torch_device())),
      narrow_storage_(Unbound(narrow_elements_ * int64_t{sizeof(BFloat16)}, device.torch_device())),
      leaves_(MakeLeaves()) {}

std::unique_ptr<const StageWeights::Leaves> StageWeights::MakeLeaves() const {
  const Charged charged(device_, MemoryClass::kBuffers);  // LibTorch makes each of them empty first
  auto leaves = std::make_unique<Leaves>();
  leaves->lane = device_.lane();
  const auto options = c10::TensorOptions().device(device_.torch_device());
  for (const ParameterSlot& slot : slots_) {
    const bool narrow = narrow_elements_ > 0 && !slot.parameter.is_wide();
    at::Tensor p = at::empty({0}, options.dtype(narrow ? c10::kBFloat16 : c10::kFloat));
    const std::vector<int64_t>& size = slot.parameter.size;
    p.set_(narrow ? narrow_storage_ : storage_, slot.offset, size, Strides(size));
    p.set_requires_grad(true);
    leaves->ends.push_back(torch::autograd::impl::gradient_edge(p));
    leaves->parameters.push_back(std::move(p));
  }
  return leaves;
}

const StageWeights::Leaves& StageWeights::leaves() {
  const int lane = device_.lane();
  if (leaves_->lane == lane) return *leaves_;
  MutexLock lock(mutex_);
  for (const std::unique_ptr<const Leaves>& others : of_other_lanes_) {
    if (others->lane == lane) return *others;
  }
  return *of_other_lanes_.emplace_back(MakeLeaves());
}

void StageWeights::Bind(Tensor memory) {
  if (memory.bytes != storage_.nbytes()) std::abort();
  storage_.set_data_ptr_noswap(at::DataPtr(memory.data, device_.torch_device()));
  memory_ = std::move(memory);
}

void StageWeights::Changed() {
  if (narrow_elements_ == 0) return;
  if (narrow_.empty()) {
    absl::StatusOr<Tensor> room =
        device_.NewFlat(narrow_elements_, MemoryClass::kWeights, DataType::kBFloat16);
    ThrowUnlessOk(room.status());
    narrow_ = *std::move(room);
    narrow_storage_.set_data_ptr_noswap(at::DataPtr(narrow_.data, device_.torch_device()));
  }
  device_.math().Narrow(static_cast<BFloat16*>(narrow_.data), data(), narrow_elements_);
}

void StageWeights::Unbind() {
  const c10::Device device = device_.torch_device();
  storage_.set_data_ptr_noswap(at::DataPtr(nullptr, device));
  narrow_storage_.set_data_ptr_noswap(at::DataPtr(nullptr, device));
  memory_ = {};
  narrow_ = {};
}

std::shared_ptr<void> StageWeights::Use(std::shared_ptr<StageWeights> weights) {
  weights->users_.fetch_add(1, std::memory_order_relaxed);
  void* const address = weights.get();
  return {address, [weights = std::move(weights)](void*) {
            // The release order puts the reader's reads before any later write there.
            weights->users_.fetch_sub(1, std::memory_order_release);
          }};
}

PassOutput RunForward(const std::vector<std::unique_ptr<Layer>>& layers, const StageLayout& layout,
                      const std::vector<at::Tensor>& inputs, const at::Tensor& targets, const MaskKey& key,
                      Pass* pass) {
  at::AutoGradMode with_graph(true);
  for (size_t i = 0; i < layout.inputs.size(); ++i) {
    const at::Tensor& leaf = inputs[i];
    leaf.set_requires_grad(true);
    pass->input_edges.push_back(torch::autograd::impl::gradient_edge(leaf));
  }
  pass->leaves = &pass->weights->leaves();
  const at::Tensor end = RunLayers(layers, layout, inputs, targets, key, pass->leaves->parameters.data());
  // The pass keeps the edge alone: the graph keeps the output's bytes only if a gradient needs them.
  pass->output = torch::autograd::impl::gradient_edge(end);
  return OutputOf(end, layout);
}

PassOutput RunWithoutGraph(const std::vector<std::unique_ptr<Layer>>& layers, const StageLayout& layout,
                           const std::vector<at::Tensor>& inputs, const at::Tensor& targets,
                           const MaskKey& key, const Pass& pass) {
  at::NoGradGuard without_graph;
  return OutputOf(RunLayers(layers, layout, inputs, targets, key, pass.weights->parameters().data()), layout);
}

PassGradients RunBackward(Pass& pass, const at::Tensor& output_gradient, PassHalf half) {
  if (half == PassHalf::kInput && !pass.input_edges.empty()) {
    pass.path = FindPathNodes(pass.output, pass.input_edges, pass.leaves->ends);
    PassGradients gradients;
    gradients.inputs = RunInputHalf(pass.output, output_gradient, pass.input_edges, &pass.path);
    for (at::Tensor& gradient : gradients.inputs) gradient = gradient.contiguous();
    if (!pass.path.empty()) {
      pass.output = {};
      pass.input_edges.clear();
    }
    return gradients;
  }
  if (half == PassHalf::kWeight && !pass.path.empty()) {
    PassGradients gradients;
    gradients.parameters = RunWeightHalf(pass.leaves->ends, &pass.path);
    for (at::Tensor& gradient : gradients.parameters) gradient = gradient.contiguous();
    return gradients;
  }
  torch::autograd::edge_list wanted;
  if (half != PassHalf::kWeight) wanted = pass.input_edges;
  const size_t inputs = wanted.size();
  if (half != PassHalf::kInput) {
    wanted.insert(wanted.end(), pass.leaves->ends.begin(), pass.leaves->ends.end());
  }
  PassGradients gradients;
  if (wanted.empty()) return gradients;
  // The caller's reference to output_gradient keeps the engine from adding to it in place: the bytes may be a
  // peer's.
  std::vector<at::Tensor> made = torch::autograd::Engine::get_default_engine().execute(
      {pass.output}, {output_gradient}, /*keep_graph=*/half == PassHalf::kInput, /*create_graph=*/false,
      /*accumulate_grad=*/false, wanted);
  for (size_t i = 0; i < made.size(); ++i) {
    // A tensor that is copied goes with its copy.
    const at::Tensor gradient = std::exchange(made[i], {});
    (i < inputs ? gradients.inputs : gradients.parameters).push_back(gradient.contiguous());
  }
  return gradients;
}

at::Tensor Wrap(const Tensor& tensor, c10::Device device) {
  if (tensor.place == MemoryPlace::kHost) device = c10::Device(c10::DeviceType::CPU);
  const at::IntArrayRef sizes(tensor.shape.size.data(), tensor.shape.dims);
  const auto options = c10::TensorOptions().dtype(TorchType(tensor.shape.type)).device(device);
  return at::from_blob(
      tensor.data, sizes, [owner = tensor.owner](void*) {}, options, device);
}

Tensor Unwrap(const at::Tensor& contiguous) {
  if (!contiguous.is_contiguous() || contiguous.dim() > TensorShape::kMaxDims) std::abort();
  Tensor tensor;
  tensor.shape.type = WeftType(contiguous.scalar_type());
  tensor.place = contiguous.is_cpu() ? MemoryPlace::kHost : MemoryPlace::kDevice;
  tensor.shape.dims = static_cast<uint8_t>(contiguous.dim());
  for (int64_t i = 0; i < contiguous.dim(); ++i) tensor.shape.size[i] = contiguous.size(i);
  tensor.data = contiguous.data_ptr();
  tensor.bytes = contiguous.nbytes();
  // The owner is the storage, not the tensor: a holder of the bytes does not hold the graph.
  tensor.owner = std::make_shared<c10::Storage>(contiguous.storage());
  return tensor;
}

}  // namespace weft
