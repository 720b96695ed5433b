#include "worker/shell/cuda/cuda_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"

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
    // The capture had not come so far.
  }
}

// After a capture that LibTorch did not end: takes the stream out of it, so that what comes says what went
// wrong instead of being captured too; and takes it back from LibTorch's allocators, which would ask the
// graph that is gone whether a stream is in it, at each allocation of the process, and keep the memory for
// ever.
void Leave(const c10::cuda::CUDAStream& stream, const c10::MempoolId_t& pool) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream.stream(), &status) == cudaSuccess &&
      status != cudaStreamCaptureStatusNone) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream.stream(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
  (void)cudaGetLastError();
  Attempt([&] {
    caching::endAllocateToPool(stream.device_index(), pool);
    caching::releasePool(stream.device_index(), pool);
  });
  Attempt([&] {
    at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool);
    at::getHostAllocator(at::kCUDA)->release_pool(pool);
  });
}

Mutex& OneAtATime() {
  static Mutex* const mutex = new Mutex;
  return *mutex;
}

}  // namespace

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
  // What the work said comes first: a capture ends badly because something in it was not allowed.
  if (!ran.ok()) return ran;
  if (!ended.ok()) return ended;
  return captured;
}

absl::Status CudaGraph::Begin() {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  try {
    graph_.emplace();
    graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    return absl::OkStatus();
  } catch (const c10::Error& e) {
    Leave(stream, pool_);
    return CaptureError(e.what_without_backtrace());
  }
}

absl::Status CudaGraph::End() {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  try {
    graph_->capture_end();
    return absl::OkStatus();
  } catch (const c10::Error& e) {
    Leave(stream, pool_);
    return CaptureError(e.what_without_backtrace());
  }
}

}  // namespace weft
