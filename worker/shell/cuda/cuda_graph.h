// Work that was captured as a CUDA graph, through LibTorch's own CUDAGraph, and is launched as one.
//
// The capture is the calling thread's alone (thread-local mode), so that other ranks of the process, the
// transport and the threads that ask fences go on meanwhile. One capture or end of a graph at a time in the
// process: LibTorch's generator, which all graphs are registered with, and its allocator keep state for
// captures that is not made for two. What must not be in captured work: waiting, reading back, copies between
// host and device of RankDevice, Await, figures, random numbers of LibTorch's generator (they would go on,
// but this runtime has masks of its own, whose seeds captured work reads from memory: dropout.h), and
// whatever depends on values. The work has been run once before, on the same streams, so that libraries have
// made what they make at first use. Ownership: what was captured together shares memory, in which each keeps
// what it gives out; it may only be replayed in an order in which the results that share it are not needed
// any more.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_GRAPH_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_GRAPH_H_

#include <ATen/cuda/CUDAGraph.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/compute/rank_device.h"

namespace weft {

class CudaGraph final : public CapturedWork {
 public:
  // On the calling thread's current stream, which is not the default one. `with` came from here, or is null.
  // ResourceExhausted where memory is out, Internal for what may not be captured; both leave the stream and
  // LibTorch as they were, and work that was not captured goes on there.
  static absl::StatusOr<std::unique_ptr<CudaGraph>> Capture(const std::function<absl::Status()>& work,
                                                            CapturedWork* with);
  ~CudaGraph() override;
  // On the calling thread's current stream. c10::Error where that fails.
  void Replay() override { graph_->replay(); }

 private:
  class Graph final : public at::cuda::CUDAGraph {
   public:
    // After a capture that failed: its generators would go on as in one, and refuse to give numbers.
    void LeaveGenerators();
  };

  explicit CudaGraph(c10::MempoolId_t pool) : pool_(pool) {}
  absl::Status Begin();
  absl::Status End();
  void Leave();

  const c10::MempoolId_t pool_;
  std::optional<Graph> graph_;
};

// For when the calling thread's device has no memory: waits until it has done all, calls `let_go`, which may
// free what was kept until then, and gives the driver what LibTorch's allocator keeps unused. That goes
// between captures, of which other threads may have one under way: in a capture the device is not to be
// waited for, and the allocator keeps everything. On a thread that captures it does nothing.
void ReleaseUnusedMemory(const std::function<void()>& let_go);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_GRAPH_H_
