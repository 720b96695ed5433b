// Declares what a rank uses of its device beside LibTorch's own operations: memory that is counted,
// arithmetic on flat buffers, copies between host and device, the order of its work, and its end.
//
// TorchRank (torch_rank.h) computes on any device through this interface and LibTorch's dispatcher; the CPU
// (cpu_rank_device.h) is one, a GPU (worker/shell/cuda) another, which comes from a library that is loaded
// when the process starts (device_library.h). So there is one implementation of what a rank does, and a
// device says how.
//
// Work is enqueued on the stream of the job that the calling thread began, and done in order there. Copies
// have streams of their own, one each way, so that they overlap with compute; fences order them. Outside of
// jobs calls that enqueue use the rank's compute stream.
//
// Invariants:
//   1. No call waits for the device but those whose comment says so; those are not made in a job.
//   2. Memory is not used again before all work that uses it has been done, also where a tensor's last owner
//      goes while its job is launched. Memory of others is kept so from Await on, through all jobs that use
//      it.
//   3. live_bytes()[c] are the bytes of class c that the rank's tensors really take in the device's memory.
//
// Threads: as RankCompute's; ToHost, ToDevice and the counts from any thread. Failure: ResourceExhausted that
// names class and bytes, or c10::OutOfMemoryError from LibTorch's operations; errors of the device's work
// come from fences.
#ifndef WEFT_WORKER_SHELL_TORCH_RANK_DEVICE_H_
#define WEFT_WORKER_SHELL_TORCH_RANK_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/flat_memory.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// Returns the lock of LibTorch's generator of the host, which the whole process has in common.
inline Mutex& HostGeneratorLock() {
  static auto* const lock = new Mutex;
  return *lock;
}

// The purpose of a copy to the host: activations that wait there for their backward, charged to class host,
// or tensors for other processes, in the transport's memory.
enum class HostUse : uint8_t { kOffload, kTransfer };

// Work that was captured once and can be done again with the same addresses.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  virtual void Replay() = 0;
};

// The device of one rank. Flat tensors, arithmetic on them and the order of their use: flat_memory.h.
class RankDevice : public FlatMemory {
 public:
  virtual c10::Device torch_device() const = 0;
  // Returns true if host memory is the device's own: tensors need no copies between them, and jobs are done
  // when they return.
  bool is_host() const { return torch_device().is_cpu(); }

  // ---- Memory.

  // Charges LibTorch's allocations on the device from this thread to the rank and this class, while the scope
  // lives. Scopes nest; each ends on the thread that began it.
  class Scope {
   public:
    virtual ~Scope() = default;
  };
  virtual std::unique_ptr<Scope> Charge(MemoryClass memory_class, Tallied tallied = Tallied::kNo) = 0;
  // Count as SegmentAllocator's.
  virtual void BeginTally() = 0;
  virtual int64_t tally(MemoryClass memory_class) const = 0;
  // The class of what a forward allocates while it runs, and what charges the part that stays, its tally, to
  // activations when it has run. A device that cannot charge anew charges everything to activations at once.
  virtual MemoryClass forward_class() const { return MemoryClass::kActivations; }
  virtual void ChargeTally(MemoryClass /*memory_class*/) {}
  virtual BytesByClass live_bytes() const = 0;
  virtual BytesByClass peak_bytes() const = 0;
  virtual int64_t most_bytes() const = 0;  // of all classes but kHost, at a time
  virtual std::optional<JobBytes> job_bytes() const { return std::nullopt; }  // as RankCompute's

  // ---- Copies.

  // Copy on the copy streams, behind `tensor.ready` and the work that the calling thread has enqueued. The
  // result's `ready` says when it is there; the source stays until then. If is_host(), ToHost for kTransfer
  // and ToDevice return the tensor itself.
  virtual absl::StatusOr<Tensor> ToHost(const Tensor& tensor, HostUse use) = 0;
  virtual absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, MemoryClass memory_class) = 0;
  // Makes host memory that the device copies from fast; for data. Undefined content.
  virtual at::Tensor NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) = 0;
  // Copy and wait, for the rank's earlier work and for the copy: for weights when a rank begins, and for
  // files. `bytes` of the device's memory.
  virtual absl::Status Load(void* to, const void* host, size_t bytes) = 0;
  virtual absl::Status ReadBack(void* host, const void* from, size_t bytes) = 0;

  // ---- Jobs: RankCompute's BeginJob and EndJob.

  virtual void BeginJob(const Job& job, bool overlapped) = 0;
  virtual std::shared_ptr<LaunchedJob> EndJob() = 0;
  // Report figures of the job under way, which its LaunchedJob will have: a float32 scalar of the device; and
  // the norm of a sum of squares, `limbs`, not a number if that has none. Call them only if !is_host().
  virtual void ReportLoss(const at::Tensor& loss) = 0;
  virtual void ReportSquares(const Tensor& limbs) = 0;

  // Returns the lane on which the calling thread's job is enqueued, by number; 0 outside of jobs. Work of two
  // lanes may be done at the same time. LibTorch binds objects to the lane that it made them on: leaves of
  // graphs, and, in captured work, the work memory of its libraries.
  virtual int lane() const { return 0; }
  // Gives back the memory that the device keeps to hand out again. It waits for the device: call it where
  // memory is out.
  virtual void ReleaseUnused() {}

  // ---- Graphs.

  // Returns false where nothing ever can be captured, or is to be: Capture is not worth trying.
  virtual bool captures() const { return false; }
  // Returns the lock of LibTorch's generator of the device, which the whole process has in common. Numbers
  // are drawn under it, and so is work captured: the generator gives none to others during a capture.
  virtual Mutex& generator_lock() const { return HostGeneratorLock(); }
  // Runs `work` while the device records the enqueued work instead of doing it; memory that it allocates
  // stays its own as long as the result lives. Returns null where the device cannot capture beside its
  // present work; then `work` has not run. After a failure, of memory or of something that cannot be
  // captured, it has run in part, and the job goes on. Work that was captured together shares memory: `with`,
  // or null. The result is replayed on this lane.
  virtual absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(const std::function<absl::Status()>& /*work*/,
                                                                CapturedWork* /*with*/) {
    return nullptr;
  }
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_RANK_DEVICE_H_
