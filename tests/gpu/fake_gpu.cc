#include "tests/gpu/fake_gpu.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "proto/wire/mutex.h"

namespace weft::testing {
namespace {

// One record of an event. A later record is another one.
struct Recorded {
  bool done = false;
  int64_t at_ns = 0;
};

struct Operation {
  std::function<void()> work;       // null for a wait
  std::shared_ptr<Recorded> waits;  // goes on once this is done
};

struct Stream {
  std::deque<Operation> queue;
};

struct Event {
  std::shared_ptr<Recorded> last;
};

class Gpu {
 public:
  static Gpu& Of() {
    static Gpu* const gpu = new Gpu;
    return *gpu;
  }

  // One operation of a random stream that may go on; false if there is none.
  bool Step() {
    std::vector<Stream*> able;
    for (Stream* s : streams) {
      if (s->queue.empty()) continue;
      const Operation& next = s->queue.front();
      if (next.waits == nullptr || next.waits->done) able.push_back(s);
    }
    if (able.empty()) return false;
    Stream* const stream = able[random() % able.size()];
    const Operation next = std::move(stream->queue.front());
    stream->queue.pop_front();
    now_ns += 1000;
    if (next.work != nullptr) next.work();
    return true;
  }

  void Drain(const std::function<bool()>& done) {
    while (!done()) {
      if (Step()) continue;
      std::fprintf(stderr, "fake GPU: a wait that can never end\n");
      std::abort();
    }
  }

  Mutex mutex;
  std::vector<Stream*> streams;
  Stream default_stream;
  std::mt19937 random{1};
  int64_t now_ns = 0;
  size_t memory = size_t{1} << 30, used = 0;
  std::map<void*, size_t> device, locked;
  cudaError_t broken = cudaSuccess;
  std::atomic<int> waits{0};

 private:
  Gpu() { streams.push_back(&default_stream); }
};

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t Said(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

Stream* Of(cudaStream_t stream) {
  return stream == nullptr ? &Gpu::Of().default_stream : reinterpret_cast<Stream*>(stream);
}
Event* Of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

cudaError_t Enqueued(cudaStream_t stream, std::function<void()> work) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Said(gpu.broken);
  Of(stream)->queue.push_back({std::move(work), nullptr});
  return cudaSuccess;
}

bool Within(const std::map<void*, size_t>& ranges, const void* pointer) {
  auto after = ranges.upper_bound(const_cast<void*>(pointer));
  if (after == ranges.begin()) return false;
  --after;
  return static_cast<const char*>(pointer) < static_cast<const char*>(after->first) + after->second;
}

}  // namespace

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
void FakeGpu::SetMemory(size_t bytes) { Gpu::Of().memory = bytes; }
void FakeGpu::Break(cudaError_t error) { Gpu::Of().broken = error; }
int FakeGpu::waits() { return Gpu::Of().waits; }
void FakeGpu::ResetWaits() { Gpu::Of().waits = 0; }

}  // namespace weft::testing

using weft::MutexLock;
using weft::testing::Gpu;
using weft::testing::Said;

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
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : Said(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* gpu, int) {
  *gpu = cudaDeviceProp{};
  std::snprintf(gpu->name, sizeof gpu->name, "fake GPU");
  gpu->major = 9;
  gpu->totalGlobalMem = Gpu::Of().memory;
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
  *free = gpu.memory - gpu.used;
  *total = gpu.memory;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (gpu.used + bytes > gpu.memory) return Said(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(size_t{2} << 20, (bytes + (size_t{2} << 20) - 1) >> 21 << 21);
  gpu.used += bytes;
  gpu.device[*memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  const auto at = gpu.device.find(memory);
  if (at == gpu.device.end()) return memory == nullptr ? cudaSuccess : Said(cudaErrorInvalidValue);
  gpu.used -= at->second;
  gpu.device.erase(at);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  gpu.locked[*memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  gpu.locked.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  gpu.locked[memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  return gpu.locked.erase(memory) == 1 ? cudaSuccess : Said(cudaErrorHostMemoryNotRegistered);
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
  return weft::testing::Of(stream)->queue.empty() ? cudaSuccess : Said(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  if (gpu.broken != cudaSuccess) return Said(gpu.broken);
  gpu.Drain([&] { return weft::testing::Of(stream)->queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  while (gpu.Step()) {
  }
  return Said(gpu.broken);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Said(gpu.broken);
  const auto& last = weft::testing::Of(event)->last;
  if (last != nullptr) weft::testing::Of(stream)->queue.push_back({nullptr, last});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = reinterpret_cast<cudaEvent_t>(new weft::testing::Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete weft::testing::Of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  auto record = std::make_shared<weft::testing::Recorded>();
  weft::testing::Of(event)->last = record;
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
  if (gpu.broken != cudaSuccess) return Said(gpu.broken);
  const auto& last = weft::testing::Of(event)->last;
  return last == nullptr || last->done ? cudaSuccess : Said(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  ++gpu.waits;
  gpu.Drain(
      [&] { return weft::testing::Of(event)->last == nullptr || weft::testing::Of(event)->last->done; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const auto &a = weft::testing::Of(from)->last, &b = weft::testing::Of(to)->last;
  if (!a->done || !b->done) return Said(cudaErrorNotReady);
  *ms = static_cast<float>(static_cast<double>(b->at_ns - a->at_ns) / 1e6);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return weft::testing::Enqueued(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return weft::testing::Enqueued(stream, [=] { std::memset(to, value, bytes); });
}

}  // extern "C"

// What would need the driver itself.
namespace at::cuda {
cublasHandle_t getCurrentCUDABlasHandle() { return nullptr; }
void* getCUDABlasLtWorkspace() { return nullptr; }
}  // namespace at::cuda
namespace c10::cuda {
cudaError_t MaybeSetDevice(DeviceIndex device) { return cudaSetDevice(device); }
}  // namespace c10::cuda
