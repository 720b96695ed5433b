// Captures work as a CUDA graph, through LibTorch's own CUDAGraph, and launches it as one.
//
// The capture is the calling thread's alone (thread-local mode), so that other ranks of the process, the
// transport and the threads that ask fences go on meanwhile. The process makes one capture, or ends one
// graph, at a time: LibTorch's generator, with which all graphs are registered, and its allocator keep state
// for captures that is not made for two. Numbers that are drawn meanwhile wait for it, too.
//
// Captured work must not wait, read back, copy between host and device with RankDevice, call Await, report
// figures, or depend on values. It must not use random numbers of LibTorch's generator (they would go on, but
// this runtime has masks of its own, whose seeds captured work reads from memory: dropout.h). The work has
// been run once before, on the same streams, so that libraries have made what they make at first use.
//
// Ownership: graphs that were captured together share memory, in which each keeps its results. They may only
// be replayed in an order in which results that share memory are not needed any more.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_GRAPH_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_GRAPH_H_

#include <ATen/cuda/CUDAGraph.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class CudaGraph final : public CapturedWork {
 public:
  // Captures on the calling thread's current stream, which is not the default one. `with` came from here, or
  // is null. ResourceExhausted where memory is out, Internal for work that may not be captured; both leave
  // the stream and LibTorch as they were, and work that was not captured goes on there.
  static absl::StatusOr<std::unique_ptr<CudaGraph>> Capture(const std::function<absl::Status()>& work,
                                                            CapturedWork* with);
  ~CudaGraph() override;
  // Returns the lock under which captures are made, and numbers drawn (RankDevice::generator_lock).
  static Mutex& OneAtATime();
  // Launches the graph on the calling thread's current stream. c10::Error where that fails.
  void Replay() override { graph_->replay(); }

 private:
  class Graph final : public at::cuda::CUDAGraph {
   public:
    // Resets the generators after a capture that failed: they would go on as in a capture, and refuse to give
    // numbers.
    void LeaveGenerators();
  };

  explicit CudaGraph(c10::MempoolId_t pool) : pool_(pool) {}
  absl::Status Begin();
  absl::Status End();
  void Leave();

  const c10::MempoolId_t pool_;
  std::optional<Graph> graph_;
};

// Frees memory when the calling thread's device has none: waits until the device has done all, calls
// `let_go`, which may free memory that was kept until then, and gives the driver the memory that LibTorch's
// allocator keeps unused. It runs between captures, of which other threads may have one under way: in a
// capture the device is not to be waited for, and the allocator keeps everything. On a thread that captures
// it does nothing.
void ReleaseUnusedMemory(const std::function<void()>& let_go);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_GRAPH_H_
