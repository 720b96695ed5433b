// Implements a rank's use of a GPU.
//
// Streams. Jobs run on lane 0. From the first overlapped pair on, each stage of the rank has one of two
// lanes, in turn as the stages come. LibTorch runs the backward of an operation on the stream of its forward,
// so a backward has the lane of its forward. A pair overlaps if its two jobs are of stages on different
// lanes, as in DualPipe, where one is of each direction; a pair on one lane is done one after the other, with
// the same result. Every job waits, on the device, for the jobs before it on the other lane, but the second
// of a pair only for what its first waited for. So only the two of a pair are ever done at the same time,
// whatever the lanes. Copies to the host and to the device have a stream each. While a lane is captured, no
// other job begins on it, and nothing is enqueued on it outside of jobs.
//
// Memory. A block of LibTorch's allocator belongs to the stream that it was made for, and is used there again
// in the stream's order as soon as it is freed. Within a job that is all. A tensor that was made elsewhere
// (by another rank, another stage, a copy, a transport) goes through Await before a job reads it. Await puts
// the wait in the stream and keeps the memory until the jobs that may use it have been done (LateRelease).
//
// Backward passes run on the thread of their job: BeginJob turns off LibTorch's threads for devices, which
// all ranks of a process would share, and which know nothing of scopes.
//
// Threads: as RankDevice's. Ownership: blocks, events, streams and ledgers outlive it.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_RANK_DEVICE_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_RANK_DEVICE_H_

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "schedules/job.h"
#include "worker/shell/cuda/cuda_flat_math.h"
#include "worker/shell/cuda/cuda_graph.h"
#include "worker/shell/cuda/cuda_holds.h"
#include "worker/shell/cuda/cuda_job.h"
#include "worker/shell/cuda/cuda_memory.h"
#include "worker/shell/cuda/cuda_streams.h"
#include "worker/shell/cuda/late_release.h"
#include "worker/shell/cuda/pinned_memory.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class CudaRankDevice final : public RankDevice {
 public:
  struct Options {
    int device = 0;
    Rank rank = 0;
    bool graphs = true;
    bool mark_jobs = false;
  };
  // `host` outlives it. c10::Error.
  CudaRankDevice(const Options& options, MemorySource& host, std::shared_ptr<CudaClock> clock,
                 std::shared_ptr<FigureSlots> slots);
  // Waits for the work that its streams were given.
  ~CudaRankDevice() override;
  CudaRankDevice(const CudaRankDevice&) = delete;
  CudaRankDevice& operator=(const CudaRankDevice&) = delete;

  c10::Device torch_device() const override;
  const FlatMath& math() const override { return math_; }

  absl::StatusOr<Tensor> NewFlat(int64_t elements, MemoryClass memory_class, DataType type) override;
  std::unique_ptr<Scope> Charge(MemoryClass memory_class, Tallied tallied) override;
  void BeginTally() override { ledger_->BeginTally(); }
  int64_t tally(MemoryClass memory_class) const override { return ledger_->tally(memory_class); }
  BytesByClass live_bytes() const override;
  BytesByClass peak_bytes() const override;
  int64_t most_bytes() const override { return ledger_->most_bytes(); }
  std::optional<JobBytes> job_bytes() const override { return ledger_->job_bytes(); }

  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, HostUse use) override;
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, MemoryClass memory_class) override;
  at::Tensor NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) override;
  Tensor Await(Tensor tensor) override;
  absl::Status Load(void* to, const void* host, size_t bytes) override;
  absl::Status ReadBack(void* host, const void* from, size_t bytes) override;

  void BeginJob(const Job& job, bool overlapped) override;
  std::shared_ptr<LaunchedJob> EndJob() override;
  void ReportLoss(const at::Tensor& loss) override;
  void ReportSquares(const Tensor& limbs) override;

  int lane() const override;
  void ReleaseUnused() override;
  bool captures() const override { return options_.graphs; }
  Mutex& generator_lock() const override { return CudaGraph::OneAtATime(); }
  absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(const std::function<absl::Status()>& work,
                                                        CapturedWork* with) override;

 private:
  struct OpenJob;
  // Returns the calling thread's job, or null.
  static std::unique_ptr<OpenJob>& Open();
  OpenJob* OwnOpenJob() const;
  OpenJob& RequireJob(const char* what) const;
  // Returns the stream of the calling thread's job; outside of jobs lane 0, behind all jobs.
  c10::cuda::CUDAStream stream();

  int LaneOf(const Job& job, bool overlapped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OrderJob(OpenJob& open, bool overlapped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartJob(OpenJob& open, const Job& job, bool overlapped);
  void FinishJob(OpenJob& open);
  void HoldDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PrepareLibraries(const c10::cuda::CUDAStream& stream);
  // Puts `stream` behind `ready`. FailedPrecondition for a fence that no stream can wait for.
  absl::Status Wait(const std::shared_ptr<Fence>& ready, const c10::cuda::CUDAStream& stream);
  // Puts the stream of copies to the host behind the tensor's `ready` and the work that the calling thread
  // has enqueued.
  absl::Status OrderToHost(const Tensor& tensor);
  absl::StatusOr<Tensor> CopyToHost(const Tensor& tensor, HostUse use);
  absl::StatusOr<Tensor> CopyToDevice(const Tensor& tensor, MemoryClass memory_class);
  // Returns the tensor, or a copy of its bytes in page-locked memory.
  absl::StatusOr<Tensor> PageLocked(const Tensor& tensor);
  absl::Status CopyAndWait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
  absl::Status Guarded(const char* doing, const std::function<absl::Status()>& work) const;
  absl::StatusOr<Tensor> Make(const char* doing, const std::function<absl::StatusOr<Tensor>()>& make);

  const Options options_;
  const CudaStreams streams_;
  const std::shared_ptr<CudaLedger> ledger_;
  const std::shared_ptr<CudaClock> clock_;
  const std::shared_ptr<FigureSlots> slots_;
  const std::shared_ptr<CudaHolds> holds_ = std::make_shared<CudaHolds>();
  LateRelease late_;
  const CudaFlatMath math_;
  const std::shared_ptr<HostArena> offloaded_, transferred_;

  Mutex mutex_;
  bool has_pairs_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, int> lane_of_stage_ ABSL_GUARDED_BY(mutex_);
  // Lanes of passes whose forward was not on lane 0: (step, stage, micro-batch).
  std::map<std::tuple<int, int, int>, int> lane_of_pass_ ABSL_GUARDED_BY(mutex_);
  std::array<int, CudaStreams::kLanes> open_on_ ABSL_GUARDED_BY(mutex_){};
  // True once the lanes are behind LibTorch's work on the default stream while the rank was made.
  bool ordered_behind_default_ ABSL_GUARDED_BY(mutex_) = false;
  // Locks held while a lane is captured; taken before mutex_.
  std::array<Mutex, CudaStreams::kLanes> captures_;
  // The last job's end on each lane, and the last job's begin that was not beside another.
  std::array<std::shared_ptr<CudaFence>, CudaStreams::kLanes> ends_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CudaFence> first_start_ ABSL_GUARDED_BY(mutex_);
  // True if something was enqueued on lane 0 outside of jobs since the last began.
  bool outside_ ABSL_GUARDED_BY(mutex_) = false;
  // The end of that work, from the next job's begin on.
  std::shared_ptr<CudaFence> outside_end_ ABSL_GUARDED_BY(mutex_);
  // Owners dropped while a job was open that may use them, until that ends.
  CudaHolds::Owners dropped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_RANK_DEVICE_H_
