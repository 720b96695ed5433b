#include "tests/gpu/fake_gpu.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "tests/gpu/fake_gpu_state.h"

namespace weft::testing {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

bool Within(const std::map<void*, size_t>& ranges, const void* pointer) {
  auto after = ranges.upper_bound(const_cast<void*>(pointer));
  if (after == ranges.begin()) return false;
  --after;
  return static_cast<const char*>(pointer) < static_cast<const char*>(after->first) + after->second;
}

// Returns true if exactly the side of a copy that `kind` calls the device's is in device memory. A copy with
// ordinary host memory waits. Call it with the lock held.
bool AreSides(Gpu& gpu, const void* to, const void* from, cudaMemcpyKind kind) {
  const bool device_to = Within(gpu.device, to), device_from = Within(gpu.device, from);
  if (kind == cudaMemcpyDeviceToHost) {
    gpu.waits += Within(gpu.locked, to) ? 0 : 1;
    return device_from && !device_to;
  }
  if (kind == cudaMemcpyHostToDevice) {
    gpu.waits += Within(gpu.locked, from) ? 0 : 1;
    return device_to && !device_from;
  }
  return true;
}

}  // namespace

cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t Enqueued(cudaStream_t stream, std::function<void()> work) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  if (Capture* const capture = CaptureOf(gpu, Of(stream))) {
    if (capture->invalid) return Remember(cudaErrorStreamCaptureInvalidated);
    AddTo(*capture, Of(stream), std::move(work));
    return cudaSuccess;
  }
  Of(stream)->queue.push_back({std::move(work), nullptr});
  return cudaSuccess;
}

void FakeGpu::Seed(uint32_t seed) { Gpu::Of().random.seed(seed); }
int FakeGpu::Run(int operations) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  int done = 0;
  while (done < operations && gpu.Step()) ++done;
  return done;
}
void FakeGpu::Enqueue(cudaStream_t stream, std::function<void()> work) {
  (void)Enqueued(stream, std::move(work));
}
void FakeGpu::SetMemory(size_t bytes) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  gpu.memory = bytes;
}
void FakeGpu::Break(cudaError_t error) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  gpu.broken = error;
  for (Stream* stream : gpu.streams) stream->queue.clear();
}
size_t FakeGpu::Queued(cudaStream_t stream) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  return Of(stream)->queue.size();
}
int FakeGpu::waits() { return Gpu::Of().waits; }
int FakeGpu::locks() { return Gpu::Of().locks; }
int FakeGpu::kernels() { return Gpu::Of().kernels; }
int FakeGpu::graphs() { return Gpu::Of().graphs; }
void FakeGpu::ResetWaits() {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  gpu.waits = gpu.locks = 0;
}

}  // namespace weft::testing

using weft::MutexLock;
using weft::testing::Gpu;
using weft::testing::Remember;
using weft::testing::Unsafe;

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : Remember(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* gpu, int) {
  *gpu = cudaDeviceProp{};
  std::snprintf(gpu->name, sizeof gpu->name, "fake GPU");
  gpu->major = 9;
  gpu->totalGlobalMem = Gpu::Of().memory;
  gpu->multiProcessorCount = 132;
  gpu->warpSize = 32;
  gpu->maxThreadsPerBlock = 1024;
  gpu->maxThreadsPerMultiProcessor = 2048;
  gpu->sharedMemPerBlock = 48 << 10;
  gpu->sharedMemPerBlockOptin = 227 << 10;
  gpu->sharedMemPerMultiprocessor = 228 << 10;
  gpu->regsPerBlock = gpu->regsPerMultiprocessor = 64 << 10;
  gpu->l2CacheSize = 50 << 20;
  gpu->memoryBusWidth = 5120;
  for (int i = 0; i < 3; ++i) gpu->maxThreadsDim[i] = i < 2 ? 1024 : 64;
  for (int i = 0; i < 3; ++i) gpu->maxGridSize[i] = i < 1 ? std::numeric_limits<int>::max() : 65535;
  for (int i = 0; i < 16; ++i) gpu->uuid.bytes[i] = static_cast<char>(0xf0 + i);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(weft::testing::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return weft::testing::last_error; }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  *free = gpu.memory - gpu.used;
  *total = gpu.memory;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  if (gpu.used + bytes > gpu.memory) return Remember(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(size_t{2} << 20, (bytes + (size_t{2} << 20) - 1) >> 21 << 21);
  gpu.used += bytes;
  gpu.device[*memory] = bytes;
  return cudaSuccess;
}
// Waits for the device.
cudaError_t cudaFree(void* memory) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  const auto at = gpu.device.find(memory);
  if (at == gpu.device.end()) return memory == nullptr ? cudaSuccess : Remember(cudaErrorInvalidValue);
  while (gpu.Step()) {
  }
  gpu.used -= at->second;
  gpu.device.erase(at);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  ++gpu.locks;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  gpu.locked[*memory] = bytes;
  return cudaSuccess;
}
// Waits for the device.
cudaError_t cudaFreeHost(void* memory) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  while (gpu.Step()) {
  }
  gpu.locked.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  if (weft::testing::Within(gpu.locked, memory)) return Remember(cudaErrorHostMemoryAlreadyRegistered);
  gpu.locked[memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  return gpu.locked.erase(memory) == 1 ? cudaSuccess : Remember(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  *attributes = {};
  attributes->type = weft::testing::Within(gpu.device, pointer)   ? cudaMemoryTypeDevice
                     : weft::testing::Within(gpu.locked, pointer) ? cudaMemoryTypeHost
                                                                  : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  gpu.streams.push_back(new weft::testing::Stream);
  *stream = reinterpret_cast<cudaStream_t>(gpu.streams.back());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -3;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  const cudaError_t refused = NotInCapture(gpu, weft::testing::Of(stream));
  if (refused != cudaSuccess) return refused;
  return weft::testing::Of(stream)->queue.empty() ? cudaSuccess : Remember(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  const cudaError_t refused = NotInCapture(gpu, weft::testing::Of(stream));
  if (refused != cudaSuccess) return refused;
  gpu.Drain([&] { return weft::testing::Of(stream)->queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  while (gpu.Step()) {
  }
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  const auto& last = weft::testing::Of(event)->last;
  weft::testing::Stream* const waiting = weft::testing::Of(stream);
  if (last == nullptr) return cudaSuccess;
  if (waiting->capture != 0 || last->capture != 0) return WaitInCapture(gpu, waiting, *last);
  waiting->queue.push_back({nullptr, last});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (Gpu::Of().broken != cudaSuccess) return Remember(Gpu::Of().broken);
  auto* const made = new weft::testing::Event;
  made->timed = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete weft::testing::Of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  auto record = std::make_shared<weft::testing::Recorded>();
  {
    Gpu& gpu = Gpu::Of();
    MutexLock lock(gpu.mutex);
    if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
    weft::testing::Event* const recorded = weft::testing::Of(event);
    recorded->last = record;
    const weft::testing::Stream* const at = weft::testing::Of(stream);
    if (const weft::testing::Capture* const capture = CaptureOf(gpu, at)) {
      record->capture = at->capture;
      record->behind = capture->streams.at(at);
      return cudaSuccess;
    }
  }
  return weft::testing::Enqueued(stream, [record] {
    record->done = true;
    record->at_ns = Gpu::Of().now_ns;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  const auto& last = weft::testing::Of(event)->last;
  if (last != nullptr && last->capture != 0) return Remember(cudaErrorCapturedEvent);
  return last == nullptr || last->done ? cudaSuccess : Remember(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (const cudaError_t refused = Unsafe(gpu); refused != cudaSuccess) return refused;
  const auto& last = weft::testing::Of(event)->last;
  if (last != nullptr && last->capture != 0) return Remember(cudaErrorCapturedEvent);
  gpu.Drain([&] { return last == nullptr || last->done; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  for (const cudaEvent_t event : {from, to}) {
    const weft::testing::Event* const e = weft::testing::Of(event);
    if (!e->timed || e->last == nullptr) return Remember(cudaErrorInvalidResourceHandle);
    if (e->last->capture != 0) return Remember(cudaErrorCapturedEvent);
    if (!e->last->done) return Remember(cudaErrorNotReady);
  }
  const int64_t span = weft::testing::Of(to)->last->at_ns - weft::testing::Of(from)->last->at_ns;
  *ms = static_cast<float>(static_cast<double>(span) / 1e6);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  {
    Gpu& gpu = Gpu::Of();
    MutexLock lock(gpu.mutex);
    if (!weft::testing::AreSides(gpu, to, from, kind)) return Remember(cudaErrorInvalidValue);
  }
  return weft::testing::Enqueued(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t begun = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return begun != cudaSuccess ? begun : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return weft::testing::Enqueued(stream, [=] { std::memset(to, value, bytes); });
}

}  // extern "C"

// These functions would need the driver itself.
namespace at::cuda {
cublasHandle_t getCurrentCUDABlasHandle() { return nullptr; }
void* getCUDABlasLtWorkspace() { return nullptr; }
}  // namespace at::cuda
namespace c10::cuda {
cudaError_t MaybeSetDevice(DeviceIndex device) { return cudaSetDevice(device); }
}  // namespace c10::cuda
