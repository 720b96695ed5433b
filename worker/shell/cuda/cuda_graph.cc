#include "worker/shell/cuda/cuda_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace weft {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

absl::Status CaptureError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("capturing a CUDA graph: ", what));
}

// Runs `work`, whatever it throws.
absl::Status Run(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return CaptureError(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return CaptureError(e.what());
  }
}

// Runs `undo`, which throws where there is nothing to undo.
void Attempt(const std::function<void()>& undo) {
  try {
    undo();
  } catch (const c10::Error&) {
    // the capture had not come so far
  }
}

}  // namespace

Mutex& CudaGraph::OneAtATime() {
  static Mutex* const mutex = new Mutex;
  return *mutex;
}

CudaGraph::~CudaGraph() {
  MutexLock lock(OneAtATime());
  graph_.reset();
}

absl::StatusOr<std::unique_ptr<CudaGraph>> CudaGraph::Capture(const std::function<absl::Status()>& work,
                                                              CapturedWork* with) {
  std::unique_ptr<CudaGraph> captured;
  absl::Status ran, ended;
  {
    MutexLock lock(OneAtATime());
    captured.reset(new CudaGraph(with != nullptr ? static_cast<CudaGraph*>(with)->pool_
                                                 : at::cuda::graph_pool_handle()));
    ran = captured->Begin();
    if (!ran.ok()) return ran;
    ran = Run(work);
    ended = captured->End();
  }
  // The error of the work comes first: a capture ends badly because something in it was not allowed.
  if (!ran.ok()) return ran;
  if (!ended.ok()) return ended;
  return captured;
}

void CudaGraph::Graph::LeaveGenerators() {
  for (auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
}

// Cleans up after a capture that LibTorch did not end. Takes the stream out of it, so that later calls say
// what went wrong instead of being captured too. Takes it back from LibTorch's allocators, which would ask
// the graph that is gone whether a stream is in it, at each allocation of the process, and keep the memory
// for ever.
void CudaGraph::Leave() {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream.stream(), &status) == cudaSuccess &&
      status != cudaStreamCaptureStatusNone) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream.stream(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
  (void)cudaGetLastError();
  if (graph_.has_value()) graph_->LeaveGenerators();
  Attempt([&] {
    caching::endAllocateToPool(stream.device_index(), pool_);
    caching::releasePool(stream.device_index(), pool_);
  });
  Attempt([&] {
    at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
    at::getHostAllocator(at::kCUDA)->release_pool(pool_);
  });
}

absl::Status CudaGraph::Begin() {
  try {
    graph_.emplace();
    graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    return absl::OkStatus();
  } catch (const c10::Error& e) {
    Leave();
    return CaptureError(e.what_without_backtrace());
  }
}

absl::Status CudaGraph::End() {
  try {
    graph_->capture_end();
    return absl::OkStatus();
  } catch (const c10::Error& e) {
    Leave();
    return CaptureError(e.what_without_backtrace());
  }
}

void ReleaseUnusedMemory(const std::function<void()>& let_go) {
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return;
  {
    MutexLock lock(CudaGraph::OneAtATime());
    // The device has failed: the next call reports it.
    if (cudaDeviceSynchronize() != cudaSuccess) return;
  }
  let_go();
  MutexLock lock(CudaGraph::OneAtATime());
  try {
    caching::emptyCache();
  } catch (const c10::Error&) {
    // The device has failed meanwhile.
  }
}

}  // namespace weft
