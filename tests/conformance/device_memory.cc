#include "tests/conformance/device_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/conformance/transport_fixture.h"

namespace weft::testing {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "device memory of the tests: %s\n", what);
  std::abort();
}

class HostDevice final : public TestDevice {
 public:
  std::string kind() const override { return "host"; }
  MemorySource& memory() override { return memory_; }
  void Write(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void Read(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }

 private:
  PlainMemory memory_;
};

// Each segment is a memory file mapped twice: without any permission where its pointers point, and readable
// elsewhere for Write and Read.
class HiddenDevice final : public TestDevice, private MemorySource {
 public:
  ~HiddenDevice() override {
    for (const auto& [hidden, segment] : segments_) {
      munmap(reinterpret_cast<void*>(hidden), segment.bytes);
      munmap(segment.seen, segment.bytes);
    }
  }
  std::string kind() const override { return "hidden"; }
  MemorySource& memory() override { return *this; }
  void Write(void* device, const void* host, size_t bytes) override {
    std::memcpy(Seen(device, bytes), host, bytes);
  }
  void Read(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, Seen(device, bytes), bytes);
  }

 private:
  struct Segment {
    char* seen = nullptr;
    size_t bytes = 0;
  };

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    const int fd = memfd_create("weft-test-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(rounded)) != 0) Die("no memory file");
    void* const hidden = mmap(nullptr, rounded, PROT_NONE, MAP_SHARED, fd, 0);
    void* const seen = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (hidden == MAP_FAILED || seen == MAP_FAILED) Die("cannot map");
    const std::lock_guard lock(mutex_);
    segments_[reinterpret_cast<uintptr_t>(hidden)] = {static_cast<char*>(seen), rounded};
    return hidden;
  }
  void Free(void* segment, size_t /*bytes*/) override {
    const std::lock_guard lock(mutex_);
    auto it = segments_.find(reinterpret_cast<uintptr_t>(segment));
    if (it == segments_.end()) Die("freed what it did not hand out");
    munmap(segment, it->second.bytes);
    munmap(it->second.seen, it->second.bytes);
    segments_.erase(it);
  }
  char* Seen(const void* device, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(device);
    const std::lock_guard lock(mutex_);
    auto it = segments_.upper_bound(address);
    if (it == segments_.begin()) Die("not its memory");
    --it;
    const size_t offset = address - it->first;
    if (offset > it->second.bytes || bytes > it->second.bytes - offset) Die("not its memory");
    return it->second.seen + offset;
  }

  std::mutex mutex_;
  std::map<uintptr_t, Segment> segments_;
};

// The driver's functions, as cuda.h declares them; loaded, because a machine without a GPU has no driver.
class CudaDevice final : public TestDevice, private MemorySource {
 public:
  static std::unique_ptr<CudaDevice> Open() {
    auto device = std::unique_ptr<CudaDevice>(new CudaDevice());
    return device->Load() ? std::move(device) : nullptr;
  }
  std::string kind() const override { return "cuda"; }
  MemorySource& memory() override { return *this; }
  void PrepareThread() override { Check(set_context_(context_), "cuCtxSetCurrent"); }
  void Write(void* device, const void* host, size_t bytes) override {
    PrepareThread();
    Check(write_(reinterpret_cast<uintptr_t>(device), host, bytes), "cuMemcpyHtoD");
    Check(synchronize_(), "cuCtxSynchronize");
  }
  void Read(void* host, const void* device, size_t bytes) override {
    PrepareThread();
    Check(read_(host, reinterpret_cast<uintptr_t>(device), bytes), "cuMemcpyDtoH");
  }
  void Lock(void* host, size_t bytes) override {
    constexpr unsigned kPortable = 1;
    PrepareThread();
    Check(lock_(host, bytes, kPortable), "cuMemHostRegister");
  }
  void Unlock(void* host) override {
    PrepareThread();
    Check(unlock_(host), "cuMemHostUnregister");
  }

 private:
  using Pointer = unsigned long long;  // CUdeviceptr

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    PrepareThread();
    Pointer pointer = 0;
    Check(allocate_(&pointer, bytes), "cuMemAlloc");
    return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
  }
  void Free(void* segment, size_t /*bytes*/) override {
    PrepareThread();
    Check(free_(reinterpret_cast<uintptr_t>(segment)), "cuMemFree");
  }

  bool Load() {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) return false;
    int (*initialize)(unsigned) = nullptr;
    int (*count)(int*) = nullptr;
    int (*get)(int*, int) = nullptr;
    int (*retain)(void**, int) = nullptr;
    const bool complete =
        Find(driver, "cuInit", &initialize) && Find(driver, "cuDeviceGetCount", &count) &&
        Find(driver, "cuDeviceGet", &get) && Find(driver, "cuDevicePrimaryCtxRetain", &retain) &&
        Find(driver, "cuCtxSetCurrent", &set_context_) && Find(driver, "cuCtxSynchronize", &synchronize_) &&
        Find(driver, "cuMemAlloc_v2", &allocate_) && Find(driver, "cuMemFree_v2", &free_) &&
        Find(driver, "cuMemcpyHtoD_v2", &write_) && Find(driver, "cuMemcpyDtoH_v2", &read_) &&
        Find(driver, "cuMemHostRegister_v2", &lock_) && Find(driver, "cuMemHostUnregister", &unlock_);
    int devices = 0, device = 0;
    if (!complete || initialize(0) != 0 || count(&devices) != 0 || devices == 0) return false;
    if (get(&device, 0) != 0 || retain(&context_, device) != 0) return false;
    PrepareThread();
    return true;
  }
  template <typename Function>
  static bool Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }
  static void Check(int result, const char* call) {
    if (result == 0) return;
    std::fprintf(stderr, "%s: error %d\n", call, result);
    Die("the CUDA driver failed");
  }

  void* context_ = nullptr;
  int (*set_context_)(void*) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*allocate_)(Pointer*, size_t) = nullptr;
  int (*free_)(Pointer) = nullptr;
  int (*write_)(Pointer, const void*, size_t) = nullptr;
  int (*read_)(void*, Pointer, size_t) = nullptr;
  int (*lock_)(void*, size_t, unsigned) = nullptr;
  int (*unlock_)(void*) = nullptr;
};

}  // namespace

std::unique_ptr<TestDevice> CreateHostDevice() { return std::make_unique<HostDevice>(); }
std::unique_ptr<TestDevice> CreateHiddenDevice() { return std::make_unique<HiddenDevice>(); }
std::unique_ptr<TestDevice> OpenCudaDevice() { return CudaDevice::Open(); }

std::unique_ptr<TestDevice> OpenDevice(const std::string& kind) {
  if (kind == "host") return CreateHostDevice();
  if (kind == "hidden") return CreateHiddenDevice();
  return kind == "cuda" ? OpenCudaDevice() : nullptr;
}

Tensor MakeDeviceTensor(TestDevice& device, size_t bytes, uint32_t seed, int* released) {
  absl::StatusOr<void*> segment = device.memory().Allocate(bytes);
  if (!segment.ok()) Die("no memory");
  std::vector<char> pattern(bytes);
  FillPattern(pattern.data(), bytes, seed);
  device.Write(*segment, pattern.data(), bytes);
  std::shared_ptr<void> owner(*segment, [&device, bytes, released](void* p) {
    device.memory().Free(p, bytes);
    if (released != nullptr) ++*released;
  });
  return Tensor{Bytes(bytes), owner.get(), bytes, owner, /*made_ns=*/0, MemoryPlace::kDevice};
}

bool DeviceHasPattern(TestDevice& device, const Tensor& tensor, uint32_t seed) {
  std::vector<char> bytes(tensor.bytes);
  device.Read(bytes.data(), tensor.data, tensor.bytes);
  Tensor copy = tensor;
  copy.data = bytes.data();
  return HasPattern(copy, seed);
}

Tensor ToHost(TestDevice& device, const Tensor& tensor, MemorySource& host) {
  if (tensor.bytes == 0) return tensor;
  absl::StatusOr<void*> segment = host.Allocate(tensor.bytes);
  if (!segment.ok()) Die("no host memory");
  device.Read(*segment, tensor.data, tensor.bytes);
  Tensor copy = tensor;
  copy.place = MemoryPlace::kHost;
  copy.data = *segment;
  // The source is kept, so that a test that counts its release sees when the copy is released.
  copy.owner =
      std::shared_ptr<void>(*segment, [&host, bytes = tensor.bytes, source = tensor.owner](void* p) mutable {
        host.Free(p, bytes);
        source.reset();
      });
  return copy;
}

Tensor ToDevice(TestDevice& device, const Tensor& tensor) {
  absl::StatusOr<void*> segment = device.memory().Allocate(tensor.bytes);
  if (!segment.ok()) Die("no memory");
  device.Write(*segment, tensor.data, tensor.bytes);
  Tensor copy = tensor;
  copy.place = MemoryPlace::kDevice;
  copy.data = *segment;
  copy.owner = std::shared_ptr<void>(
      *segment, [&device, bytes = tensor.bytes](void* p) { device.memory().Free(p, bytes); });
  return copy;
}

}  // namespace weft::testing
