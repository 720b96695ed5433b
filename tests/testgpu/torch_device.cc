// Implements what LibTorch asks of a device beside operations: memory, guards, streams.
#include "tests/testgpu/torch_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <string>

#include "tests/testgpu/device_memory.h"
#include "tests/testgpu/pinned_memory.h"
#include "tests/testgpu/thread_state.h"

namespace weft::testgpu {
namespace {

thread_local DeviceQueue* thread_queue = nullptr;

// Keeps pinned memory, by address.
class PinnedMemory {
 public:
  static PinnedMemory& Instance() {
    static PinnedMemory* const pinned = new PinnedMemory;
    return *pinned;
  }
  void* Allocate(size_t bytes) {
    void* const begin = ::operator new (bytes, std::align_val_t{64});
    std::lock_guard lock(mutex_);
    blocks_.insert(begin);
    return begin;
  }
  void Free(void* begin) {
    {
      std::lock_guard lock(mutex_);
      blocks_.erase(begin);
    }
    ::operator delete (begin, std::align_val_t{64});
  }
  bool Has(const void* begin) {
    std::lock_guard lock(mutex_);
    return blocks_.count(begin) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<const void*> blocks_;
};

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device = TorchDevice(CurrentThread().device);
    if (bytes == 0) return {nullptr, device};
    absl::StatusOr<void*> block = AllocateHere(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, block.ok(), std::string(block.status().message()));
    return {*block, *block, &DeviceMemory::Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &DeviceMemory::Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const DeviceMemory& memory = DeviceMemory::Instance();
    std::memcpy(memory.Mirror(to), memory.Mirror(from), bytes);
  }
};

// Kernels are done when they return, so events need nothing.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return TorchDevice(CurrentThread().device); }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) CurrentThread().device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, CurrentThread().stream);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    CurrentThread().stream = static_cast<int>(stream.id());
    return before;
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    static char recorded;
    *event = &recorded;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { Forbid("synchronizeStream"); }
  void synchronizeEvent(void*) const override { Forbid("synchronizeEvent"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { Forbid("synchronizeDevice"); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

 private:
  static void Forbid(const char* what) {
    const absl::Status status = CheckMayWait(what);
    TORCH_CHECK(status.ok(), std::string(status.message()));
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { CurrentThread().device = device; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(CurrentThread().device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    if (device >= 0) setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(DeviceMemory::Instance().Contains(data), "testgpu: no address of the device");
    return TorchDevice(CurrentThread().device);
  }
  // Operations run with the CPU's kernels, and draw from the CPU's generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }
};

}  // namespace

bool IsPinned(const void* address) { return PinnedMemory::Instance().Has(address); }

DeviceQueue* ThreadQueue() { return thread_queue; }
void SetThreadQueue(DeviceQueue* queue) { thread_queue = queue; }

at::Tensor NewPinnedTensor(at::IntArrayRef sizes, c10::ScalarType type) {
  size_t bytes = c10::elementSize(type);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  void* const memory = PinnedMemory::Instance().Allocate(bytes);
  return at::from_blob(
      memory, sizes, [](void* begin) { PinnedMemory::Instance().Free(begin); },
      c10::TensorOptions().dtype(type));
}

void RegisterTorchDevice() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("testgpu");
    c10::SetAllocator(c10::DeviceType::PrivateUse1, new DeviceAllocator);
    static const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::PrivateUse1, new Guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
  });
}

}  // namespace weft::testgpu
