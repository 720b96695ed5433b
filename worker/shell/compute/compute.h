// Defines what a rank computes: the numbers of a training run, stage by stage and job by job, behind an
// interface without LibTorch.
//
// One RankCompute holds the state of one rank: for each of its stages the module, the weights in one flat
// buffer, the gradient sum, the optimizer state, and the activations that live between a forward and its
// backward. The worker calls one method a job. A second device (CUDA) implements the same interface.
//
// Invariants:
//   1. One numerical result: with one thread a kernel, the weights after any sequence of jobs that respects
//      the job graph are equal to the bit to those of the plain loop over micro-batches (reference.h),
//      whatever the cut, placement and order of micro-batches.
//   2. Gradients are summed in the order of micro-batches 0, 1, 2, ..; out-of-order ones wait.
//   3. Bytes are measured by the allocator, by class, never estimated; everything a job allocates is charged
//      to the rank.
//   4. A forward keeps tensors according to the schedule's `activations`: all that the backward needs
//      (retain), the stage's inputs alone (recompute: the backward runs the forward again first), or all of
//      it in host memory (offload). The bits are the same.
//   5. A forward and its backward compute with the same version of the weights. A rank holds the newest
//      version and those that updates were told to keep, until they are dropped.
//   6. The state of a stage that migrates is here from BeginState or AdoptState to GiveState, and all jobs of
//      the stage are between them. A rank that has none and computes, or has one and gets another, aborts and
//      names the job: state would be lost or doubled.
//   7. Initial weights depend on the seed and on each parameter's layer and name only; random masks on seed,
//      step, micro-batch and layer.
//
// Threads: one job at a time, on any thread; or, as an overlapped pair, one forward (Forward, ForwardOnly) on
// one thread and one backward (AdoptPass, Backward) of another micro-batch, of any stage, on another. Nothing
// else runs beside either, except Weights, DropWeights, live_bytes and peak_bytes, which may be called from
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
#include "run/run_spec.h"
#include "schedules/job.h"
#include "worker/shell/compute/evaluation.h"
#include "worker/shell/memory/fence.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class CommunicationLibrary;
struct StageSnapshot;  // checkpoint.h

enum class MemoryClass : uint8_t { kWeights, kGradients, kOptimizer, kActivations, kBuffers, kHost };
inline constexpr int kMemoryClasses = 6;
// Returns "weights", "gradients", "optimizer", "activations", "buffers", "host". The last is not in the
// rank's own memory: activations that were moved to the host's.
absl::string_view MemoryClassName(MemoryClass c);
using BytesByClass = std::array<int64_t, kMemoryClasses>;

struct ForwardResult {
  Tensor activation;           // [samples, ..] output of the stage; empty for the last stage
  std::optional<double> loss;  // mean loss of the micro-batch; last stage only
  // Bytes of class activations, the output included: they stay until the backward at most.
  int64_t left_bytes = 0;
};
struct BackwardResult {
  std::vector<Tensor> input_gradients;  // gradients of each input, as they came to the forward
  Tensor gradient;                      // flat [parameters] float32 of this micro-batch; only if handed out
};

// The elements [begin, end) of part `part` of `parts` of a flat buffer: near-equal, cut at multiples of 16
// elements.
struct SliceBounds {
  int64_t begin = 0, end = 0;
};
SliceBounds SliceOf(int64_t elements, int part, int parts);
// Returns a slice of a flat float32 tensor that shares its bytes.
Tensor Slice(const Tensor& flat, int part, int parts);

// A job whose work the device has been given and may not have done yet. As a fence it is reached when the job
// has ended.
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

class RankCompute {
 public:
  virtual ~RankCompute() = default;

  // Enclose the calls of one job, on its thread. `beside`: it is the second of an overlapped pair, to be
  // computed while the other is. EndJob returns the work that the device still has to do; null, as on the
  // CPU, where the job has been done when its calls return. Later jobs of the rank may begin at once, and use
  // this one's results: the device keeps the order. The results of the job's calls (tensors, loss) are there
  // once the launched job has been reached. Their arguments may lie in host memory, too: a device with memory
  // of its own copies them. Whatever a job reads stays until the device has done with it.
  virtual void BeginJob(const Job& job, bool beside) {}
  virtual std::shared_ptr<LaunchedJob> EndJob() { return nullptr; }

  // Returns the same values in host memory that peers can map; `ready` says when they are there. Returns the
  // tensor itself where nothing has to move. Any thread.
  virtual absl::StatusOr<Tensor> ToHost(Tensor tensor) { return tensor; }

  // Builds stage `stage` with the weights that the run begins with: version 0, or, where it goes on from a
  // checkpoint, the versions there that steps may read. `holds_weights`: this rank is one of the stage's
  // weight holders and keeps gradient sum and optimizer state for it; else each job brings the weights it
  // needs.
  virtual absl::Status AddStage(int stage, bool holds_weights) = 0;
  // Builds a stage of which this rank holds slice `part` of `parts` (SliceOf its elements) alone, with
  // gradient sum and optimizer state for that. Its jobs' weights are gathered, its gradients handed out; an
  // update takes the sum of the slice, and Weights returns the slice.
  virtual absl::Status AddSlicedStage(int stage, int part, int parts) = 0;
  // Builds a stage whose weights this rank holds and another one updates: without gradient sum and optimizer
  // state. Each next version comes to Adopt.
  virtual absl::Status AddAdoptedStage(int stage) = 0;
  // Sums only the rank's own gradients of a stage that it holds, or of a slice of it. Call before the stage's
  // first job. The sum is over the micro-batches whose backwards run here, in the order in which these end;
  // TakeSum (part 0 of 1) then returns what there is. Collectives make the sum over the ranks of it.
  virtual absl::Status SumOwnGradients(int /*stage*/) {
    return absl::UnimplementedError("this device has no sums for collectives");
  }
  // Begins the migrating state of a stage that was added without its weights: all versions of the weights
  // that are still read, the sum of gradients in progress with all that are in it, and the optimizer's state.
  // While the state is here, the stage is as one that holds its weights; no pass may keep using them.
  // BeginState begins it with the initial weights.
  virtual absl::Status BeginState(const Job& job) = 0;
  // Takes in a state that another rank's GiveState gave: DataLoss for one that is not of this stage.
  virtual absl::Status AdoptState(const Job& job, Tensor state) = 0;
  virtual absl::StatusOr<Tensor> GiveState(const Job& job) = 0;
  virtual bool HasState(int stage) const = 0;

  // Returns the elements of the stage's flat weights buffer, padding included.
  virtual int64_t stage_elements(int stage) const = 0;

  // Returns the whole weights for the job, from the slices of all parts, in order; the rank's own, held at
  // this version, may be empty.
  virtual absl::StatusOr<Tensor> GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                               int version) = 0;

  // Returns memory for the whole weights of a stage, which collectives fill from all slices for one job; as
  // GatherWeights returns them.
  virtual absl::StatusOr<Tensor> RoomForWeights(const Job& /*job*/) {
    return absl::UnimplementedError("this device has no room for gathered weights");
  }

  // Runs a forward. `inputs`: the activations of the stages that it reads, ascending; data it reads by
  // itself. `weights`: a fetched copy, empty to use the held ones at this version. OutOfRange for a loss that
  // is not finite where the run stops at it.
  virtual absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                                int version) = 0;

  // Run a micro-batch's forward and backward of a stage on different ranks: the forward keeps nothing, and
  // before its backward the other rank adopts the pass, to start over from the stage's inputs.
  virtual absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs,
                                                    Tensor weights, int version) = 0;
  virtual absl::Status AdoptPass(const Job& job, std::vector<Tensor> inputs) = 0;

  // Runs a backward. `output_gradients`: of the stages that read its output, ascending; the last stage starts
  // from its loss. `hand_out`: return the micro-batch's gradient instead of adding it to the held sum.
  virtual absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                                  Tensor weights, int version, bool hand_out) = 0;

  // Adds one micro-batch's slice to the sum of part `part` of `parts` for (job.step, job.stage). Called in
  // order of micro-batches.
  virtual absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part,
                                  int parts) = 0;
  // Returns the sum of the gradients of the micro-batches before the job's and of its own, whose memory it
  // takes.
  virtual absl::StatusOr<Tensor> AddToSum(const Job& job, const Tensor& before, Tensor gradient) = 0;
  // Returns the finished sum of that part; the rank gives it up.
  virtual absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) = 0;

  // Returns the exact sum of squares (sum_of_squares.h) of TakeSum's `sum` for that part, together with
  // `others`, the results of such calls for other parts and stages. Statistics have no part in it. If a value
  // is infinite or not a number, returns OutOfRange where the run stops at it (train.non_finite), else a sum
  // without a norm.
  virtual absl::StatusOr<Tensor> SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                            const std::vector<Tensor>& others) = 0;

  // Makes the next version, by one optimizer step of the rank's part of the stage: from `sums` (all parts of
  // that, in order), or from the held sum when `sums` is empty. The mean over micro-batches is taken by
  // scaling the loss, not here. The optimizer's state is that of the newest version, whatever versions the
  // gradients were made with, and its learning rate is that of job.step. `norm`: where the run clips
  // gradients, the sum of squares of all stages' sums of this step, by which these are clipped first. Without
  // a norm in it the update is left out: the next version is the same, and the optimizer has made no step.
  // `keep`: the version that it begins with stays, for jobs that will read it; without, it is gone.
  virtual absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                              bool keep) = 0;

  // Makes the next version of an adopted stage: a copy of another rank's. `keep` as in Update.
  virtual absl::Status Adopt(const Job& job, const Tensor& weights, bool keep) = 0;

  // Returns the held weights of the stage at a version, flat. They stay as they are as long as the tensor is
  // kept.
  virtual absl::StatusOr<Tensor> Weights(int stage, int version) = 0;
  // Drops a version of the held weights that no job will read any more. May be called while jobs run.
  virtual void DropWeights(int stage, int version) = 0;

  // Writes the held stage into `folder`: `stage<ss>.safetensors`, and, unless it is of version 0, first
  // `state/stage<ss>.safetensors` (training_state.h), each complete or not at all. Requires the versions that
  // later steps read. Of a sliced stage each holder writes its slice there, and a holder that finds all of
  // them joins them into those files. Every holder knows version 0, and the holder of part 0 writes it.
  virtual absl::Status Save(int stage, const std::string& folder) = 0;

  // Returns what Save would write, of a version but 0, as copies in host memory: within the update that makes
  // the version, behind it. A device with memory of its own copies after the job has been launched; the
  // rank's thread does not wait, and its later work on the device does.
  virtual absl::StatusOr<std::shared_ptr<const StageSnapshot>> Snapshot(int /*stage*/) {
    return absl::UnimplementedError("this device takes no snapshots");
  }

  // Writes version 0 of any stage that was added, whether its weights are here or not.
  virtual absl::Status SaveInitial(int stage, const std::string& folder) = 0;

  virtual BytesByClass live_bytes() const = 0;
  virtual BytesByClass peak_bytes() const = 0;
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
  virtual absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const RunSpec& run, Rank rank,
                                                                  MemorySource& memory) = 0;
  // Computes loss and accuracy of the checkpoint in `folder` on the run's held-out data, on the host's CPU
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
