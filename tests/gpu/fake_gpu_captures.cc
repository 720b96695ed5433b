// The GPU of the tests: captures, graphs, and kernels, which do nothing.
#include <algorithm>
#include <limits>

#include "tests/gpu/fake_gpu_state.h"

namespace weft::testing {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Returns true if every stream of the capture has come back to the one that it began on. Call it with the
// lock held.
bool AllJoined(Capture& capture) {
  Behind& end = capture.streams[capture.begun_on];
  return std::all_of(capture.streams.begin(), capture.streams.end(),
                     [&](const auto& entry) { return end[entry.first] == entry.second.at(entry.first); });
}

}  // namespace

cudaError_t Unsafe(Gpu& gpu) {
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t refused = cudaSuccess;
  for (auto& [id, capture] : gpu.captures) {
    const bool own =
        capture.thread == std::this_thread::get_id() && capture.mode != cudaStreamCaptureModeRelaxed;
    const bool others =
        capture.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!own && !others) continue;
    capture.invalid = true;
    refused = cudaErrorStreamCaptureUnsupported;
  }
  return Remember(refused);
}

Capture* CaptureOf(Gpu& gpu, const Stream* stream) {
  return stream->capture == 0 ? nullptr : &gpu.captures.at(stream->capture);
}

cudaError_t NotInCapture(Gpu& gpu, const Stream* stream) {
  Capture* const capture = CaptureOf(gpu, stream);
  if (capture == nullptr) return Unsafe(gpu);
  capture->invalid = true;
  return Remember(cudaErrorStreamCaptureUnsupported);
}

void AddTo(Capture& capture, const Stream* stream, std::function<void()> work) {
  ++capture.streams[stream][stream];
  capture.work.push_back(std::move(work));
}

cudaError_t WaitInCapture(Gpu& gpu, Stream* stream, const Recorded& event) {
  Capture* const own = CaptureOf(gpu, stream);
  const auto others = gpu.captures.find(event.capture);
  if (others == gpu.captures.end() || (own != nullptr && own != &others->second)) {
    if (own != nullptr) own->invalid = true;
    return Remember(own != nullptr ? cudaErrorStreamCaptureIsolation : cudaErrorCapturedEvent);
  }
  Capture& capture = others->second;
  stream->capture = event.capture;  // if it was in none, it joins
  Behind& behind = capture.streams[stream];
  for (const auto& [other, count] : event.behind) behind[other] = std::max(behind[other], count);
  ++behind[stream];
  return cudaSuccess;
}

cudaError_t LaunchedKernel(cudaStream_t stream) {
  ++Gpu::Of().kernels;
  return Enqueued(stream, [] {});
}

}  // namespace weft::testing

using weft::MutexLock;
using weft::testing::Enqueued;
using weft::testing::Gpu;
using weft::testing::Remember;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  if (stream == nullptr) return Remember(cudaErrorStreamCaptureUnsupported);
  weft::testing::Stream* const captured = weft::testing::Of(stream);
  if (captured->capture != 0) return Remember(cudaErrorIllegalState);
  captured->capture = ++gpu.last_capture;
  weft::testing::Capture& capture = gpu.captures[captured->capture];
  capture.begun_on = captured;
  capture.thread = std::this_thread::get_id();
  capture.mode = mode;
  capture.streams[captured][captured] = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  *graph = nullptr;
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  weft::testing::Stream* const ended = weft::testing::Of(stream);
  const uint64_t id = ended->capture;
  if (id == 0) return Remember(cudaErrorIllegalState);
  weft::testing::Capture& capture = gpu.captures.at(id);
  if (capture.begun_on != ended) return Remember(cudaErrorStreamCaptureUnmatched);
  if (capture.thread != std::this_thread::get_id() && capture.mode != cudaStreamCaptureModeRelaxed)
    return Remember(cudaErrorStreamCaptureWrongThread);
  const cudaError_t failed = capture.invalid                      ? cudaErrorStreamCaptureInvalidated
                             : !weft::testing::AllJoined(capture) ? cudaErrorStreamCaptureUnjoined
                                                                  : cudaSuccess;
  if (failed == cudaSuccess)
    *graph = reinterpret_cast<cudaGraph_t>(new weft::testing::Graph{std::move(capture.work)});
  for (weft::testing::Stream* s : gpu.streams) {
    if (s->capture == id) s->capture = 0;
  }
  gpu.captures.erase(id);
  return Remember(failed);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  Gpu& gpu = Gpu::Of();
  MutexLock lock(gpu.mutex);
  if (gpu.broken != cudaSuccess) return Remember(gpu.broken);
  const weft::testing::Stream* const asked = weft::testing::Of(stream);
  const weft::testing::Capture* const capture = CaptureOf(gpu, asked);
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (id != nullptr) *id = asked->capture;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = std::exchange(weft::testing::thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = reinterpret_cast<weft::testing::Graph*>(graph)->work.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(
      new weft::testing::Graph(*reinterpret_cast<weft::testing::Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<weft::testing::Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<weft::testing::Graph*>(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const weft::testing::Graph graph = *reinterpret_cast<weft::testing::Graph*>(executable);
  ++Gpu::Of().graphs;
  return Enqueued(stream, [graph] {
    for (const std::function<void()>& work : graph.work) work();
  });
}

// ---- Kernels: they are launched and do nothing.

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return weft::testing::LaunchedKernel(stream);
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return weft::testing::LaunchedKernel(stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch, const void*, void**) {
  return weft::testing::LaunchedKernel(launch->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      return cudaSuccess;
    case cudaDevAttrMaxGridDimX:
      *value = std::numeric_limits<int>::max();
      return cudaSuccess;
    default:
      *value = 1024;
      return cudaSuccess;
  }
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                   unsigned int) {
  *blocks = 8;
  return cudaSuccess;
}

}  // extern "C"
