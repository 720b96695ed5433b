// Implements LibTorch's side of the test device: PrivateUse1 under the name "testgpu".
//
// Each operation runs at once, on the calling thread, with the CPU's kernel, on tensors of the CPU that lie
// where the device's bytes are (device_memory.h). So sizes, strides and alignment are those of the device's
// tensors, and an operation's bits are those that the CPU would give, unless the device was asked to compute
// otherwise (other_arithmetic.h). The results of an operation are copied into memory of the device.
// Operations that wait for the device are refused in jobs.
#ifndef WEFT_TESTS_TESTGPU_TORCH_DEVICE_H_
#define WEFT_TESTS_TESTGPU_TORCH_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

#include "absl/status/status.h"
#include "tests/testgpu/device_queue.h"

namespace weft::testgpu {

inline constexpr int kDevices = 4;

inline c10::Device TorchDevice(int index) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

// Registers the device, once a process, before LibTorch asks which devices there are.
void RegisterTorchDevice();

// Sets the queue of this thread's rank, which does copies from fast host memory, later; null: at once.
void SetThreadQueue(DeviceQueue* queue);

// Makes a tensor in fast host memory (RankDevice::NewHostTensor).
at::Tensor NewPinnedTensor(at::IntArrayRef sizes, c10::ScalarType type);

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_TORCH_DEVICE_H_
