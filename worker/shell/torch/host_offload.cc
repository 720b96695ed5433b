#include "worker/shell/torch/host_offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "run/layer_spec.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {
namespace {

thread_local HostOffload* current_offload = nullptr;

c10::weak_intrusive_ptr<c10::StorageImpl> NoStorage() {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
}

// Returns the address of the counter that tensors share. LibTorch shows only its value: a VariableVersion is
// a pointer to it.
const void* CounterOf(const c10::VariableVersion& counter) {
  const void* address = nullptr;
  static_assert(sizeof(counter) == sizeof(address));
  std::memcpy(&address, static_cast<const void*>(&counter), sizeof(address));
  return address;
}

// Keeps one saved tensor: a view of bytes that are away, or, for parameters, the tensor itself.
class AwayHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit AwayHooks(HostOffload* scope) : scope_(scope) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // The tensor is kept without its place in the graph: the graph must not hold itself.
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
  HostOffload* scope_;  // used until packed, which is at once
  at::Tensor kept_;
  std::shared_ptr<OffloadedTensor> away_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  at::TensorOptions options_;
};

class OffloadEngine final : public torch::autograd::Engine {
 public:
  // Returns the engine, which lives as long as the process: graphs may end during its end.
  static Engine& Instance() {
    static OffloadEngine* const engine = new OffloadEngine;
    return *engine;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    HostOffload* const scope = HostOffload::Current();
    if (scope == nullptr) return nullptr;
    return std::make_unique<AwayHooks>(scope);
  }

  // A backward that fails leaves its tasks, and with them the pass's graph and its memory, in the thread's
  // queue, where they would stay until the thread's next backward.
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    try {
      return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      init_local_ready_queue(std::make_shared<torch::autograd::ReadyQueue>());
      throw;
    }
  }
};

}  // namespace

OffloadedTensor::OffloadedTensor(RankDevice& device, Tensor host)
    : device_(device), host_(std::move(host)), back_(NoStorage()) {}

void OffloadedTensor::Begin() {
  absl::StatusOr<Tensor> arriving = device_.ToDevice(host_, MemoryClass::kActivations);
  ThrowUnlessOk(arriving.status());
  arriving_ = *std::move(arriving);
}

c10::Storage OffloadedTensor::Fetch() {
  if (auto there = back_.lock()) return c10::Storage(std::move(there));
  c10::Storage storage = device_.is_host() ? Copied() : Arrived();
  back_ = storage.getWeakStorageImpl();
  return storage;
}

c10::Storage OffloadedTensor::Copied() const {
  const auto scope = device_.Charge(MemoryClass::kBuffers);  // for the time of the backward
  c10::Storage storage(c10::Storage::use_byte_size_t(), host_.bytes, c10::GetCPUAllocator(),
                       /*resizable=*/false);
  device_.math().Copy(storage.mutable_data(), host_.data, host_.bytes);
  return storage;
}

c10::Storage OffloadedTensor::Arrived() {
  if (arriving_.empty()) Begin();
  auto tensor = std::make_unique<Tensor>(device_.Await(std::exchange(arriving_, {})));
  void* const data = tensor->data;
  const size_t bytes = tensor->bytes;
  at::DataPtr memory(
      data, tensor.release(), [](void* context) { delete static_cast<Tensor*>(context); },
      device_.torch_device());
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), /*allocator=*/nullptr,
                      /*resizable=*/false);
}

int64_t OffloadedTensors::Staying(const std::function<int64_t()>& tally) const {
  // The sources are held, so that none goes between the two counts. The bytes of one that another thread is
  // just giving back are still counted, so they are waited for.
  std::vector<std::shared_ptr<OffloadSource>> sources;
  for (const Source& source : sources_) {
    if (auto held = source.source.lock()) {
      sources.push_back(std::move(held));
    } else {
      while (!*source.gone) std::this_thread::yield();
    }
  }
  int64_t bytes = tally();
  for (const std::shared_ptr<OffloadSource>& source : sources) {
    const bool only_copied = source->stripped == nullptr && source->storage.use_count() == 1;
    if (only_copied) bytes -= AlignedBytes(static_cast<int64_t>(source->storage.nbytes()));
  }
  return bytes;
}

// Begins all, the last saved one first: it is needed first.
void OffloadedTensors::BeginAll() {
  for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved) {
    if (const auto tensor = saved->lock()) tensor->Begin();
  }
}

void OffloadedTensors::ForgetRest() {
  for (const auto& saved : saved_) {
    if (const auto tensor = saved.lock()) tensor->Forget();
  }
}

HostOffload::HostOffload(RankDevice& device, Storages parameters, OffloadedTensors* offloaded)
    : device_(device), parameters_(parameters), offloaded_(offloaded), outer_(current_offload) {
  current_offload = this;
  // Python's PyTorch, once a plug-in has brought it (python_interpreter.h), installs an engine of its own.
  if (&torch::autograd::Engine::get_default_engine() != &OffloadEngine::Instance()) InstallOffloadEngine();
}

HostOffload::~HostOffload() { current_offload = outer_; }

HostOffload* HostOffload::Current() { return current_offload; }

bool HostOffload::Stays(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return true;
  // Tensors that an operation keeps in host memory beside the device's stay, as fused attention's seed.
  if (tensor.device().type() != device_.torch_device().type()) return true;
  return std::find(parameters_.begin(), parameters_.end(), tensor.storage().unsafeGetStorageImpl()) !=
         parameters_.end();
}

std::shared_ptr<OffloadedTensor> HostOffload::Send(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  const SentKey key{storage, CounterOf(counter), counter.current_version()};
  const auto [entry, is_new] = sent_.try_emplace(key, Sent{NoStorage(), counter, nullptr, {}});
  Sent& sent = entry->second;
  if (!is_new) return sent.away;
  const auto source = std::make_shared<OffloadSource>(tensor.storage());
  Tensor bytes;
  bytes.shape = {DataType::kUInt8, 1, {static_cast<int64_t>(storage->nbytes())}};
  bytes.data = storage->mutable_data();
  bytes.bytes = storage->nbytes();
  bytes.owner = source;
  bytes.place = device_.is_host() ? MemoryPlace::kHost : MemoryPlace::kDevice;
  absl::StatusOr<Tensor> host = device_.ToHost(bytes, HostUse::kOffload);
  ThrowUnlessOk(host.status());
  sent.from = tensor.storage().getWeakStorageImpl();
  sent.away = std::make_shared<OffloadedTensor>(device_, *std::move(host));
  sent.source = source;
  if (!device_.is_host()) offloaded_->Append(sent.away, source);
  return sent.away;
}

void HostOffload::Strip(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes =
      std::make_shared<at::DataPtr>(storage->set_data_ptr(at::DataPtr(nullptr, tensor.device())));
  const auto first = sent_.lower_bound(SentKey{storage});
  for (auto sent = first; sent != sent_.end() && sent->first.storage == storage; ++sent) {
    if (const auto source = sent->second.source.lock()) source->stripped = bytes;
  }
}

void InstallOffloadEngine() { torch::autograd::set_default_engine_stub(&OffloadEngine::Instance); }

}  // namespace weft
