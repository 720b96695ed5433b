#include "worker/shell/compute/host_offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstring>
#include <string>
#include <vector>

#include "worker/shell/compute/memory_scope.h"

namespace weft {
namespace {

thread_local HostOffload* current_offload = nullptr;

c10::weak_intrusive_ptr<c10::StorageImpl> NoStorage() {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
}

// One saved tensor: a view of bytes that are away, or, for parameters, the tensor itself.
class AwayHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit AwayHooks(HostOffload* scope) : scope_(scope) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // Without its place in the graph: the graph must not hold itself.
    if (scope_->Stays(tensor)) {
      kept_ = tensor.detach();
    } else {
      away_ = scope_->Send(tensor);
      sizes_ = tensor.sizes().vec();
      strides_ = tensor.strides().vec();
      offset_ = tensor.storage_offset();
      options_ = tensor.options();
    }
    scope_ = nullptr;
  }

  at::Tensor call_unpack_hook() override {
    if (kept_.defined()) return kept_;
    at::NoGradGuard no_grad;
    at::Tensor tensor = at::empty({0}, options_);
    tensor.set_(away_->Fetch(), offset_, sizes_, strides_);
    return tensor;
  }

 private:
  HostOffload* scope_;  // until packed, which is at once
  at::Tensor kept_;
  std::shared_ptr<HostOffload::Away> away_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  at::TensorOptions options_;
};

class OffloadEngine final : public torch::autograd::Engine {
 public:
  // Lives as long as the process: graphs may end during its end.
  static Engine& Instance() {
    static OffloadEngine* const engine = new OffloadEngine;
    return *engine;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    HostOffload* const scope = HostOffload::Current();
    if (scope == nullptr) return nullptr;
    return std::make_unique<AwayHooks>(scope);
  }
};

}  // namespace

HostOffload::HostOffload(SegmentAllocator* device, SegmentAllocator* host, const c10::StorageImpl* parameters)
    : device_(device), host_(host), parameters_(parameters), outer_(current_offload) {
  current_offload = this;
}

HostOffload::~HostOffload() { current_offload = outer_; }

HostOffload* HostOffload::Current() { return current_offload; }

bool HostOffload::Stays(const at::Tensor& tensor) const {
  return !tensor.has_storage() || tensor.storage().unsafeGetStorageImpl() == parameters_;
}

std::shared_ptr<HostOffload::Away> HostOffload::Send(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto [entry, is_new] =
      sent_.try_emplace({storage, static_cast<uint32_t>(tensor._version())}, Sent{NoStorage(), nullptr});
  Sent& sent = entry->second;
  if (!is_new) return sent.away;
  const size_t bytes = storage->nbytes();
  absl::StatusOr<void*> block = host_->Allocate(bytes, MemoryClass::kHost);
  TORCH_CHECK_WITH(OutOfMemoryError, block.ok(), std::string(block.status().message()));
  Tensor host{{DataType::kUInt8, 1, {static_cast<int64_t>(bytes)}},
              *block,
              bytes,
              std::shared_ptr<void>(*block, &SegmentAllocator::Free)};
  if (bytes > 0) std::memcpy(host.data, storage->data(), bytes);
  sent.from = tensor.storage().getWeakStorageImpl();
  sent.away = std::make_shared<Away>(Away{std::move(host), device_, NoStorage()});
  return sent.away;
}

c10::Storage HostOffload::Away::Fetch() {
  if (auto there = back.lock()) return c10::Storage(std::move(there));
  MemoryScope scope(device, MemoryClass::kActivations);
  c10::Storage storage(c10::Storage::use_byte_size_t(), host.bytes, c10::GetCPUAllocator(),
                       /*resizable=*/false);
  if (host.bytes > 0) std::memcpy(storage.mutable_data(), host.data, host.bytes);
  back = storage.getWeakStorageImpl();
  return storage;
}

void InstallOffloadEngine() { torch::autograd::set_default_engine_stub(&OffloadEngine::Instance); }

}  // namespace weft
