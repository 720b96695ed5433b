#include "worker/shell/cuda/pinned_memory.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "worker/shell/cuda/cuda_graph.h"

namespace weft {
namespace {

// Makes `device` the thread's while it lives: threads of the transport that never chose one may come here.
class ThisDevice {
 public:
  explicit ThisDevice(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ == device) return;
    (void)cudaSetDevice(device);
    changed_ = true;
  }
  ~ThisDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  ThisDevice(const ThisDevice&) = delete;
  ThisDevice& operator=(const ThisDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

absl::Status NoMemory(cudaError_t error, size_t bytes, const char* kind, const char* advice) {
  (void)cudaGetLastError();
  return absl::ResourceExhaustedError(
      absl::StrFormat("no %d bytes of %s: %s%s", bytes, kind, cudaGetErrorString(error), advice));
}

// Reports a failure to free memory, except at the end of the process, when the driver may have gone first.
void Released(cudaError_t error, const char* kind) {
  if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
  (void)cudaGetLastError();
  std::fprintf(stderr, "giving back %s: %s\n", kind, cudaGetErrorString(error));
}

}  // namespace

absl::StatusOr<void*> PinnedMemory::Allocate(size_t bytes) {
  const ThisDevice device(device_);
  void* segment = nullptr;
  const cudaError_t error = cudaHostAlloc(&segment, bytes, cudaHostAllocPortable);
  if (error != cudaSuccess) {
    return NoMemory(error, bytes, "page-locked host memory",
                    "; activations: offload moves activations there, and they must fit the machine");
  }
  return segment;
}

void PinnedMemory::Free(void* segment, size_t /*bytes*/) {
  const ThisDevice device(device_);
  Released(cudaFreeHost(segment), "page-locked host memory");
}

absl::StatusOr<void*> RegisteredMemory::Allocate(size_t bytes) {
  absl::StatusOr<void*> segment = source_.Allocate(bytes);
  if (!segment.ok()) return segment;
  const ThisDevice device(device_);
  const cudaError_t error = cudaHostRegister(*segment, bytes, cudaHostRegisterPortable);
  if (error == cudaErrorHostMemoryAlreadyRegistered) {
    (void)cudaGetLastError();
    MutexLock lock(mutex_);
    locked_by_others_.insert(*segment);
  } else if (error != cudaSuccess) {
    source_.Free(*segment, bytes);
    return NoMemory(error, bytes, "shared host memory that the GPU copies from and to",
                    "; its pages are locked: see the limits of the container and of the user (ulimit -l)");
  }
  return segment;
}

void RegisteredMemory::Free(void* segment, size_t bytes) {
  bool own = false;
  {
    MutexLock lock(mutex_);
    own = locked_by_others_.erase(segment) == 0;
  }
  if (own) {
    const ThisDevice device(device_);
    Released(cudaHostUnregister(segment), "shared host memory");
  }
  source_.Free(segment, bytes);
}

absl::StatusOr<void*> DeviceSegments::Allocate(size_t bytes) {
  // Smaller allocations share one of the driver's, and IPC maps whole ones.
  constexpr size_t kWhole = size_t{2} << 20, kPage = 4096;
  const ThisDevice device(device_);
  void* segment = nullptr;
  const size_t rounded = (bytes + kWhole - 1) / kWhole * kWhole;
  cudaError_t error = cudaMalloc(&segment, rounded);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    ReleaseUnusedMemory([] {});
    error = cudaMalloc(&segment, rounded);
  }
  if (error != cudaSuccess) {
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    const std::string state =
        absl::StrFormat("; cuda:%d has %d bytes, of which %d are free", device_, total, free);
    return NoMemory(error, bytes, "GPU memory for tensors of other processes", state.c_str());
  }
  if (reinterpret_cast<uintptr_t>(segment) % kPage != 0) {
    (void)cudaFree(segment);
    return absl::InternalError(absl::StrFormat("cuda:%d gave memory that is not aligned to a page", device_));
  }
  return segment;
}

void DeviceSegments::Free(void* segment, size_t /*bytes*/) {
  const ThisDevice device(device_);
  Released(cudaFree(segment), "GPU memory");
}

HostArena::HostArena(std::unique_ptr<MemorySource> source)
    : source_(std::move(source)), allocator_(SegmentAllocator::Create(*source_)) {}

absl::StatusOr<Tensor> HostArena::New(const TensorShape& shape, size_t bytes) {
  absl::StatusOr<void*> block = allocator_->Allocate(bytes, MemoryClass::kHost);
  if (!block.ok()) return block.status();
  Tensor tensor;
  tensor.shape = shape;
  tensor.data = *block;
  tensor.bytes = bytes;
  // Freeing the last block of an arena that is gone ends its allocator, which returns the segments to the
  // source.
  tensor.owner =
      std::shared_ptr<void>(*block, [self = shared_from_this()](void* b) { SegmentAllocator::Free(b); });
  return tensor;
}

}  // namespace weft
