#include "worker/shell/cuda/cuda_graph.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"

namespace weft {
namespace {

absl::Status CaptureError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("capturing a CUDA graph: ", what,
                                          "; what a model does that cannot be captured runs without graphs"));
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

// After a capture that LibTorch could not end: takes the stream out of it, so that what comes says what went
// wrong instead of being captured too. LibTorch's allocator is not asked again: the rank has failed.
void Leave(const c10::cuda::CUDAStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream.stream(), &status) == cudaSuccess &&
      status != cudaStreamCaptureStatusNone) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream.stream(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
  (void)cudaGetLastError();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGraph>> CudaGraph::Capture(const std::function<absl::Status()>& work,
                                                              CapturedWork* with) {
  static Mutex* const one_at_a_time = new Mutex;
  MutexLock lock(*one_at_a_time);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  try {
    std::unique_ptr<CudaGraph> captured(new CudaGraph(with != nullptr ? static_cast<CudaGraph*>(with)->pool_
                                                                      : at::cuda::graph_pool_handle()));
    captured->graph_.capture_begin(captured->pool_, cudaStreamCaptureModeThreadLocal);
    const absl::Status ran = Run(work);
    try {
      captured->graph_.capture_end();
    } catch (const c10::Error& e) {
      Leave(stream);
      // What the work said comes first: a capture ends badly because something in it was not allowed.
      return ran.ok() ? CaptureError(e.what_without_backtrace()) : ran;
    }
    if (!ran.ok()) return ran;
    return captured;
  } catch (const c10::Error& e) {
    Leave(stream);
    return CaptureError(e.what_without_backtrace());
  }
}

}  // namespace weft
