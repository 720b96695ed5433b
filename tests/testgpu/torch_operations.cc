// Every operation of LibTorch on the test device.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/testgpu/device_memory.h"
#include "tests/testgpu/other_arithmetic.h"
#include "tests/testgpu/pinned_memory.h"
#include "tests/testgpu/thread_state.h"
#include "tests/testgpu/torch_device.h"

namespace weft::testgpu {
namespace {

constexpr auto kDeviceKey = c10::DispatchKey::PrivateUse1;

void Check(const absl::Status& status) { TORCH_CHECK(status.ok(), std::string(status.message())); }

bool IsOnDevice(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

at::Tensor MakeTensor(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

// One operation's tensors: as the CPU's kernels see them, and back.
class Call {
 public:
  explicit Call(std::string name) : name_(std::move(name)) {}

  at::Tensor OnHost(const at::Tensor& tensor, bool writes) {
    if (!IsOnDevice(tensor)) return tensor;
    TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "testgpu: ", name_, " of a lazily changed tensor");
    if (device_index_ < 0) device_index_ = tensor.device().index();
    if (tensor.numel() > 0) {
      const size_t bytes =
          at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
      Check(Touch(name_, tensor.const_data_ptr(), bytes, writes));
    }
    at::Tensor host = MakeTensor(HostStorage(tensor.storage()), c10::DispatchKey::CPU, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
      host.unsafeGetTensorImpl()->set_wrapped_number(true);
    arguments_.push_back({tensor, host});
    return host;
  }

  at::Tensor OnDevice(const at::Tensor& host) {
    if (!host.defined()) return host;
    for (const Argument& argument : arguments_) {
      if (argument.host.is_same(host)) return argument.device;
    }
    return MakeTensor(DeviceStorage(host.storage()), kDeviceKey, host);
  }

  // An operation may have given what it wrote to another size.
  void TakeSizes() {
    for (const Argument& argument : arguments_) {
      const at::Tensor &device = argument.device, &host = argument.host;
      if (device.sizes() == host.sizes() && device.strides() == host.strides()) continue;
      c10::TensorImpl* const impl = device.unsafeGetTensorImpl();
      const void* const mirrored = DeviceMemory::Instance().Mirror(device.storage().data());
      if (host.storage().data() != mirrored) {
        Check(Copy(host.storage(), device.storage()));
      }
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  void SetDevice(c10::Device device) { device_index_ = device.index(); }

 private:
  struct Argument {
    at::Tensor device, host;
  };

  c10::Storage HostStorage(const c10::Storage& device) {
    for (const auto& [on_device, on_host] : storages_) {
      if (on_device.is_alias_of(device)) return on_host;
    }
    void* const bytes = DeviceMemory::Instance().Mirror(const_cast<void*>(device.data()));
    c10::Storage host(c10::Storage::use_byte_size_t(), device.nbytes(),
                      c10::DataPtr(bytes, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
                      /*resizable=*/true);
    storages_.push_back({device, host});
    return host;
  }

  c10::Storage DeviceStorage(const c10::Storage& host) {
    for (const auto& [on_device, on_host] : storages_) {
      if (on_host.is_alias_of(host)) return on_device;
    }
    c10::Storage device(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, Index()),
                        c10::GetAllocator(c10::DeviceType::PrivateUse1), /*resizable=*/true);
    Check(Copy(host, device));
    storages_.push_back({device, host});
    return device;
  }

  c10::Device Index() const {
    return TorchDevice(device_index_ < 0 ? CurrentThread().device : device_index_);
  }

  // All of the host's bytes, in new memory of the device.
  absl::Status Copy(const c10::Storage& host, const c10::Storage& device) const {
    c10::DataPtr memory = c10::GetAllocator(c10::DeviceType::PrivateUse1)->allocate(host.nbytes());
    memory.unsafe_set_device(Index());
    if (host.nbytes() > 0)
      std::memcpy(DeviceMemory::Instance().Mirror(memory.get()), host.data(), host.nbytes());
    device.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    device.unsafeGetStorageImpl()->set_nbytes(host.nbytes());
    return absl::OkStatus();
  }

  const std::string name_;
  int device_index_ = -1;
  std::vector<Argument> arguments_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // of device and host
};

// Returns true for operations that need a value of the device on the host to go on.
bool Waits(const std::string& name) {
  for (const char* waiting : {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
                              "aten::masked_select", "aten::_unique2", "aten::unique_dim"}) {
    if (name == waiting) return true;
  }
  return false;
}

c10::IValue HostArgument(Call& call, const c10::IValue& value, bool writes) {
  if (value.isTensor()) return call.OnHost(value.toTensor(), writes);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.OnHost(tensor, writes));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional(call.OnHost(*tensor, writes)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) {
    call.SetDevice(value.toDevice());
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

c10::IValue DeviceResult(Call& call, const c10::IValue& value) {
  if (value.isTensor()) return call.OnDevice(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.OnDevice(tensor));
    return list;
  }
  return value;
}

void RunOnMirror(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (Waits(schema.name())) Check(CheckMayWait(schema.name()));
  Call call(schema.name());
  const size_t begin = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    c10::IValue& value = (*stack)[begin + i];
    value = HostArgument(call, value, alias != nullptr && alias->isWrite());
  }
  Compute(CurrentThread().arithmetic, op, stack);
  call.TakeSizes();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = DeviceResult(call, (*stack)[i]);
  }
}

at::Tensor Empty(at::IntArrayRef size, std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, c10::GetAllocator(c10::DeviceType::PrivateUse1),
                                   c10::DispatchKeySet(kDeviceKey), c10::dtype_or_default(type), format);
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<c10::ScalarType> type,
                        std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::DeviceType::PrivateUse1),
                                           c10::DispatchKeySet(kDeviceKey), c10::dtype_or_default(type));
}

at::Tensor& SetStorage(at::Tensor& self, c10::Storage source, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "testgpu: set_ to memory of another device");
  std::vector<int64_t> strides = stride.vec();
  if (strides.size() != size.size()) {
    strides.assign(size.size(), 1);
    for (size_t i = size.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(1, size[i]);
  }
  const size_t bytes = at::detail::computeStorageNbytes(size, strides, self.itemsize(), offset);
  TORCH_CHECK(bytes <= source.nbytes() || self.numel() == 0, "testgpu: set_ beyond the storage's end");
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

// The CPU's bytes come later where the device can read them by itself then.
bool CopyLater(const at::Tensor& from, const at::Tensor& to) {
  DeviceQueue* const queue = ThreadQueue();
  const bool plain = from.is_contiguous() && to.is_contiguous() && from.dtype() == to.dtype();
  if (queue == nullptr || !plain || !IsPinned(from.const_data_ptr())) return false;
  Check(Touch("a copy to the device", to.const_data_ptr(), to.nbytes(), /*writes=*/true));
  auto event = std::make_shared<DeviceEvent>();
  DeviceMemory& memory = DeviceMemory::Instance();
  memory.SetArriving(to.const_data_ptr(), event, /*in_order=*/true);
  void* const target = memory.Mirror(to.mutable_data_ptr());
  queue->Enqueue(event, [from, target, kept = c10::Storage(to.storage())] {
    std::memcpy(target, from.const_data_ptr(), from.nbytes());
    return absl::OkStatus();
  });
  return true;
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool crosses = IsOnDevice(from) != IsOnDevice(to);
  if (crosses && non_blocking && from.is_cpu() && from.sizes() == to.sizes() && CopyLater(from, to))
    return to;
  if (crosses)
    Check(CheckMayWait(IsOnDevice(to) ? "a copy from ordinary host memory" : "a copy to the host"));
  Call call("aten::copy_");
  const at::Tensor host = call.OnHost(from, false);
  call.OnHost(to, true).copy_(host);
  return to;
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return CopyFrom(from, to, /*non_blocking=*/false);
}

// Chooses as the CPU does, so that attention takes the same kernels.
int64_t ChooseAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::optional<at::Tensor>& mask, double dropout, bool causal,
                        std::optional<double> scale, bool grouped) {
  Call call("aten::_fused_sdp_choice");
  const auto on_host = [&](const at::Tensor& tensor) {
    return call.OnHost(tensor, false).set_requires_grad(tensor.requires_grad());
  };
  std::optional<at::Tensor> host_mask;
  if (mask.has_value()) host_mask = on_host(*mask);
  return at::_fused_sdp_choice(on_host(query), on_host(key), on_host(value), host_mask, dropout, causal,
                               scale, grouped);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunOnMirror>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &SetStorage);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  // These have a kernel for all devices too, which computes otherwise than the CPU's.
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&RunOnMirror>());
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&RunOnMirror>());
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&RunOnMirror>());
  m.impl("_fused_sdp_choice", &ChooseAttention);
}

}  // namespace
}  // namespace weft::testgpu

namespace at::native {
namespace {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &weft::testgpu::ChooseAttention)
}  // namespace
}  // namespace at::native
