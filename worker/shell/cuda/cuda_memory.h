// Charges the bytes of a GPU's memory to ranks and classes, as LibTorch's caching allocator hands them out.
//
// The allocator tells a tracker of each block that it hands out and takes back. While a CudaScope lives,
// blocks that are handed out on its thread are charged to the scope's ledger and class, until the block is
// freed, when it may be used again in the order of its stream. A block that other streams use is not freed
// before they are done (LateRelease): nobody calls the allocator's recordStream. It forgets the uses that are
// recorded while any thread of the process captures a graph, and a block that is freed meanwhile is handed
// out again under the stream that reads it; and with recorded uses, freeing asks the device, and throws in a
// destructor where that has failed. Backward passes run on the thread of the job (cuda_rank_device.h), so
// they are charged as well. Blocks inside of a graph's memory are not counted, but the graph's memory itself
// is, as segments, as long as the allocator keeps them for it.
//
// Invariants:
//   1. A ledger's live_bytes()[c] is the sum over its blocks of class c of the bytes that were asked for,
//      rounded up to kTensorAlignment, as on the CPU and in the counts of a run's memory; and over graph
//      segments of their size. Memory that the allocator keeps to hand out again, and what it adds to a block
//      (up to 512 bytes, its unit, or the rest of one that it does not cut, below 1 MiB), is nobody's.
//   2. When there is no memory, c10::OutOfMemoryError names the class, the bytes asked, the bytes of the
//      device, and the bytes alive by class.
//
// Threads: any; a scope ends on the thread that began it. Ownership: the tracker lives as long as the
// process, a ledger as long as a block that is charged to it.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_MEMORY_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_MEMORY_H_

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "schedules/job.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/job_meter.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class CudaLedger {
 public:
  explicit CudaLedger(Rank rank) : rank_(rank) {}

  Rank rank() const { return rank_; }
  BytesByClass live_bytes() const;
  BytesByClass peak_bytes() const;
  // Returns the most bytes of all classes that were alive at a time.
  int64_t most_bytes() const { return most_bytes_.load(std::memory_order_relaxed); }
  void BeginTally();
  int64_t tally(MemoryClass memory_class) const;
  // Begins to measure a job, and returns the figures of the present one.
  void BeginJob();
  JobBytes job_bytes() const;

  // Charges the bytes and returns the number of the tally that they are in, 0 for none, which Release takes.
  uint32_t Charge(MemoryClass memory_class, int64_t bytes, Tallied tallied);
  void Release(MemoryClass memory_class, int64_t bytes, uint32_t tally);

 private:
  const Rank rank_;
  // Bytes by class; written under mutex_, read by anyone.
  std::array<std::atomic<int64_t>, kMemoryClasses> live_{}, peak_{};
  std::atomic<int64_t> most_bytes_{0};
  int64_t Live(MemoryClass c) const { return live_[static_cast<int>(c)].load(std::memory_order_relaxed); }
  mutable Mutex mutex_;
  JobMeter meter_ ABSL_GUARDED_BY(mutex_);
  int64_t live_sum_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t tally_ ABSL_GUARDED_BY(mutex_) = 0;
  BytesByClass tally_bytes_ ABSL_GUARDED_BY(mutex_){};
};

// Begins to track LibTorch's allocations on all devices, once; later calls do nothing. LibTorch's CUDA half
// has been initialized.
void InstallCudaTracker();
// Registers a ledger, so that messages can name the other bytes that are alive.
void RegisterLedger(const std::shared_ptr<CudaLedger>& ledger);

class CudaScope : public RankDevice::Scope {
 public:
  CudaScope(std::shared_ptr<CudaLedger> ledger, MemoryClass memory_class, Tallied tallied);
  ~CudaScope() override;
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  static const CudaScope* Current();
  const std::shared_ptr<CudaLedger>& ledger() const { return ledger_; }
  MemoryClass memory_class() const { return memory_class_; }
  Tallied tallied() const { return tallied_; }

 private:
  const std::shared_ptr<CudaLedger> ledger_;
  const MemoryClass memory_class_;
  const Tallied tallied_;
  const CudaScope* const outer_;
};

// Makes a tensor of the device in a block of its own that is first used on `stream`, charged to the ledger.
// Its content is undefined. ResourceExhausted.
absl::StatusOr<Tensor> NewCudaTensor(const std::shared_ptr<CudaLedger>& ledger, const TensorShape& shape,
                                     size_t bytes, MemoryClass memory_class,
                                     const c10::cuda::CUDAStream& stream);

// Returns true if the tensor is in a block of NewCudaTensor that is of `stream`: then the work of that stream
// may use it, and nothing need be kept.
bool IsBlockOf(const Tensor& tensor, const c10::cuda::CUDAStream& stream);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_MEMORY_H_
