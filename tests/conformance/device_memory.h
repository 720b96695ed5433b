// Provides memory of a device as the transport tests see it: a source of segments, and copies to and from the
// host.
//
// There are three kinds. "host" is ordinary memory that is called a device's: UCX moves it, so the whole way
// of device tensors runs without a device. "hidden" is memory that nobody can touch at its address, as with a
// GPU's: every access of the transport to it is a crash. "cuda" is a GPU's, by its driver alone.
//
// Thread-safe. Each outlives its allocations.
#ifndef WEFT_TESTS_CONFORMANCE_DEVICE_MEMORY_H_
#define WEFT_TESTS_CONFORMANCE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft::testing {

class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual std::string kind() const = 0;
  virtual std::string uuid() const { return kind() + "-0"; }
  virtual MemorySource& memory() = 0;
  // Prepares the thread as Device::PrepareThread does.
  virtual void PrepareThread() {}
  // Copy the bytes, which are there when the calls return.
  virtual void Write(void* device, const void* host, size_t bytes) = 0;
  virtual void Read(void* host, const void* device, size_t bytes) = 0;
  // Page-locks host memory until Unlock, as a worker does with memory that it copies from and to.
  virtual void Lock(void* /*host*/, size_t /*bytes*/) {}
  virtual void Unlock(void* /*host*/) {}
};

std::unique_ptr<TestDevice> CreateHostDevice();
std::unique_ptr<TestDevice> CreateHiddenDevice();
// Returns null where there is no driver or no GPU.
std::unique_ptr<TestDevice> OpenCudaDevice();

// Opens a device by its kind; null for "" and for a "cuda" that is not there.
std::unique_ptr<TestDevice> OpenDevice(const std::string& kind);

// Makes a tensor as MakeTensor (transport_fixture.h) does, in the device's memory.
Tensor MakeDeviceTensor(TestDevice& device, size_t bytes, uint32_t seed, int* released = nullptr);
bool DeviceHasPattern(TestDevice& device, const Tensor& tensor, uint32_t seed);
// ToHost does what a worker does for a peer that takes no device memory, and ToDevice what the peer then
// does.
Tensor ToHost(TestDevice& device, const Tensor& tensor, MemorySource& host);
Tensor ToDevice(TestDevice& device, const Tensor& tensor);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_DEVICE_MEMORY_H_
