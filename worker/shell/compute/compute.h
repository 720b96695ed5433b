// Defines what a rank computes: the numbers of a training run, stage by stage and job by job, behind
// interfaces without LibTorch.
//
// One RankCompute holds the state of one rank: for each of its stages the versions of the weights, the
// gradient sum, the optimizer state, and the activations that live between a forward and its backward. The
// job runner (loop/job_runner.h) calls one method or a few for each job. It is four interfaces in one, so
// that a reader, and code that needs one of them, has that alone: passes (rank_passes.h), gradient sums and
// updates (rank_updates.h), weights and states of stages (rank_weights.h), files (rank_files.h). TorchRank
// (torch/torch_rank.h) implements them for every device; RankDevice (torch/rank_device.h) is what differs.
//
// Invariants:
//   1. One numerical result: with one thread a kernel, the weights after any sequence of jobs that respects
//      the job graph are equal to the bit to those of the plain loop over micro-batches (reference.h),
//      whatever the cut, placement and order of micro-batches.
//   2. Bytes are measured by the allocator, by class, never estimated; everything a job allocates is charged
//      to the rank.
//   3. Initial weights depend on the seed and on each parameter's layer and name only.
//
// Threads: one job at a time, on any thread, or an overlapped pair (rank_passes.h). Nothing else runs beside
// either, except Weights, DropWeights, MemoryToReceive, live_bytes and peak_bytes, which may be called from
// any thread at any time. Failure: an exception of LibTorch becomes a Status naming the job; after a failed
// job, and the one beside it, the rank's state is not to be used further.
#ifndef WEFT_WORKER_SHELL_COMPUTE_COMPUTE_H_
#define WEFT_WORKER_SHELL_COMPUTE_COMPUTE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "run/slice_bounds.h"
#include "schedules/job.h"
#include "schedules/job_bytes.h"
#include "worker/shell/compute/evaluation.h"
#include "worker/shell/compute/rank_files.h"
#include "worker/shell/compute/rank_passes.h"
#include "worker/shell/compute/rank_updates.h"
#include "worker/shell/compute/rank_weights.h"
#include "worker/shell/memory/fence.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class CommunicationLibrary;

enum class MemoryClass : uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kBuffers,
  kReceived,  // copies of tensors from other processes, until they have been read
  kHost,      // activations that were moved to the host's memory; not in the rank's own
};
inline constexpr int kMemoryClasses = 7;
// Returns "weights", "gradients", "optimizer", "activations", "buffers", "received", "host".
absl::string_view MemoryClassName(MemoryClass c);
using BytesByClass = std::array<int64_t, kMemoryClasses>;

// Returns a slice of a flat float32 tensor that shares its bytes.
Tensor Slice(const Tensor& flat, int part, int parts);

// A job whose work the device has been given and may not have done yet. The fence is reached when the job has
// ended.
class LaunchedJob : public Fence {
 public:
  struct Figures {
    int64_t start_ns = 0, end_ns = 0;  // times that the device measured, on this machine's monotonic clock
    std::optional<double> loss;
    std::optional<double> gradient_norm;
  };
  // Returns the figures. Requires that the job has been reached.
  virtual Figures figures() = 0;
};

class RankCompute : public RankPasses, public RankUpdates, public RankWeights, public RankFiles {
 public:
  // Enclose the calls of one job, on its thread. `overlapped`: it is the second of an overlapped pair, to be
  // computed while the other is. EndJob returns the work that the device still has to do; null, as on the
  // CPU, where the job has been done when its calls return. Later jobs of the rank may begin at once, and use
  // this one's results: the device keeps the order. The results of the job's calls (tensors, loss) are there
  // once the launched job has been reached. Their arguments may lie in host memory, too: a device with memory
  // of its own copies them. The arguments of a job stay until the device has done with them.
  virtual void BeginJob(const Job& job, bool overlapped) {}
  virtual std::shared_ptr<LaunchedJob> EndJob() { return nullptr; }

  // Returns the same values in host memory that peers can map; `ready` says when they are there. Returns the
  // tensor itself where nothing has to move. Any thread.
  virtual absl::StatusOr<Tensor> ToHost(Tensor tensor) { return tensor; }

  // Returns memory of the rank's own for a tensor that arrives from another process as a copy; null where the
  // transport is to take its own, as on a device that reads other memory than the host's. FailedPrecondition
  // if the rank has a budget that does not count the copy. Any thread.
  virtual absl::StatusOr<std::shared_ptr<void>> MemoryToReceive(size_t /*bytes*/) { return nullptr; }

  virtual BytesByClass live_bytes() const = 0;
  virtual BytesByClass peak_bytes() const = 0;
  // Returns the most bytes of all classes but kHost that were alive at a time.
  virtual int64_t most_bytes() const = 0;
  // Returns what the present job of the rank has taken since BeginJob; nothing where that is not measured. Of
  // overlapped jobs it says nothing of use.
  virtual std::optional<JobBytes> job_bytes() const { return std::nullopt; }
  // Returns FailedPrecondition if the rank has had more than its budget, where that was admitted by measured
  // buffers.
  virtual absl::Status CheckBudget() const { return absl::OkStatus(); }
};

// A device that computes. `name` is "cpu" or "cuda:i".
class Device {
 public:
  virtual ~Device() = default;
  virtual absl::string_view name() const = 0;
  // Returns the id that tells it from every other device on any machine; empty for a device that ranks share
  // as they please, as the CPU.
  virtual absl::string_view uuid() const { return ""; }
  // Returns sums and gathers among such devices (communicator.h); null where there are none.
  virtual CommunicationLibrary* communication() { return nullptr; }
  // Prepares the calling thread. Call it on every thread of the process that runs jobs or moves the device's
  // memory, before it does; cheap when repeated.
  virtual void PrepareThread() {}
  // Returns why the device does nothing more for this process (DeviceBackend::Health); OK while it works.
  virtual absl::Status Health() { return absl::OkStatus(); }
  // Returns how many jobs of a rank the device is given before the first of them has ended; 1 where jobs end
  // as they return.
  virtual int launch_ahead() const { return 1; }
  // Makes a rank's compute. `memory` serves the rank's allocations and outlives it. Reads the data files'
  // headers: NotFound or InvalidArgument naming the file.
  virtual absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                                  MemorySource& memory) = 0;
  // Computes loss and metrics of the checkpoint in `folder` on the run's held-out data, on the host's CPU
  // whatever the device, so that they are the same everywhere. While ranks of the run compute, of whose state
  // it touches nothing; on a thread of its own. Cancelled where `on_progress` ends it.
  virtual absl::StatusOr<Evaluation> Validate(const RunSpec& /*run*/, const std::string& /*folder*/,
                                              const EvaluationProgress& /*on_progress*/) {
    return absl::UnimplementedError("this device validates nothing");
  }
};

// Makes the CPU's device through LibTorch, one thread a kernel. Call once a process, before other threads use
// LibTorch.
std::unique_ptr<Device> CreateCpuDevice();

// Makes a device of the backend's kind (device_backend.h). Call once a process, likewise.
class DeviceBackend;
std::unique_ptr<Device> CreateTorchDevice(std::unique_ptr<DeviceBackend> backend);

// Removes one holder's slice of an earlier run. OK when there is none.
absl::Status DiscardSlice(const std::string& folder, int stage, int part, int parts);

// Merges the stages' files in `folder` under one index (`model.safetensors.index.json`), last, so that a
// folder with an index is complete.
absl::Status WriteCheckpointIndex(const std::string& folder, const RunSpec& run);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_COMPUTE_H_
