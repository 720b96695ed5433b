#include "worker/shell/cuda/cuda_rank_device.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/core/AutogradState.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/cuda/cuda_graph.h"
#include "worker/shell/cuda/pending_host_copies.h"
#include "worker/shell/memory/keep_forever.h"

namespace weft {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "CUDA rank device: %s\n", what);
  std::abort();
}

// Sends LibTorch's operations outside of jobs to the rank's stream.
class OutsideScope final : public CudaScope {
 public:
  OutsideScope(std::shared_ptr<CudaLedger> ledger, MemoryClass memory_class, Tallied tallied,
               const c10::cuda::CUDAStream& stream)
      : CudaScope(std::move(ledger), memory_class, tallied), guard_(stream) {}

 private:
  const c10::cuda::CUDAStreamGuard guard_;
};

}  // namespace

// The state of a thread from BeginJob to EndJob.
struct CudaRankDevice::OpenJob {
  const CudaRankDevice* device = nullptr;
  std::shared_ptr<CudaJob> job;
  int lane = 0;
  std::optional<c10::cuda::CUDAStreamGuard> guard;
  PendingHostCopies host_copies;
  bool was_multithreaded = false;
  bool counted = false;  // among those open on its lane
  bool capturing = false;
};

CudaRankDevice::CudaRankDevice(const Options& options, MemorySource& host, std::shared_ptr<CudaClock> clock,
                               std::shared_ptr<FigureSlots> slots)
    : options_(options),
      streams_(CudaStreams::Take(options.device)),
      ledger_(std::make_shared<CudaLedger>(options.rank)),
      clock_(std::move(clock)),
      slots_(std::move(slots)),
      math_([this] { return stream(); }),
      offloaded_(std::make_shared<HostArena>(std::make_unique<PinnedMemory>(options.device))),
      transferred_(std::make_shared<HostArena>(std::make_unique<RegisteredMemory>(options.device, host))) {
  InstallCudaTracker();
  RegisterLedger(ledger_);
}

CudaRankDevice::~CudaRankDevice() {
  for (const c10::cuda::CUDAStream& s :
       {streams_.lanes[0], streams_.lanes[1], streams_.to_host, streams_.to_device}) {
    // The jobs have reported it.
    if (cudaStreamSynchronize(s.stream()) != cudaSuccess) (void)cudaGetLastError();
  }
  holds_->Trim();
  CudaStreams::Return(streams_);
}

c10::Device CudaRankDevice::torch_device() const {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(options_.device)};
}

absl::Status CudaRankDevice::Guarded(const char* doing, const std::function<absl::Status()>& work) const {
  try {
    // Threads of data and of the transport come here too.
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(options_.device));
    return work();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(doing, ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InternalError(
        absl::StrCat("cuda:", options_.device, ": ", doing, ": ", e.what_without_backtrace()));
  }
}

// ---- Memory.

absl::StatusOr<Tensor> CudaRankDevice::NewFlat(int64_t elements, MemoryClass memory_class, DataType type) {
  return Make("making a flat tensor", [&] {
    return NewCudaTensor(ledger_, TensorShape{type, 1, {elements}},
                         static_cast<size_t>(elements) * ElementBytes(type), memory_class, stream());
  });
}

// Makes a tensor; where there is no memory, again once all that is unused has been given back.
absl::StatusOr<Tensor> CudaRankDevice::Make(const char* doing,
                                            const std::function<absl::StatusOr<Tensor>()>& make) {
  absl::StatusOr<Tensor> tensor;
  const auto once = [&] {
    tensor = make();
    return tensor.status();
  };
  absl::Status made = Guarded(doing, once);
  if (absl::IsResourceExhausted(made)) {
    // Memory that other streams read is kept until the next look.
    ReleaseUnused();
    made = Guarded(doing, once);
  }
  if (!made.ok()) return made;
  return tensor;
}

std::unique_ptr<RankDevice::Scope> CudaRankDevice::Charge(MemoryClass memory_class, Tallied tallied) {
  if (OwnOpenJob() != nullptr) return std::make_unique<CudaScope>(ledger_, memory_class, tallied);
  return std::make_unique<OutsideScope>(ledger_, memory_class, tallied, stream());
}

BytesByClass CudaRankDevice::live_bytes() const {
  constexpr int kHost = static_cast<int>(MemoryClass::kHost);
  BytesByClass bytes = ledger_->live_bytes();
  bytes[kHost] += offloaded_->allocator().live_bytes()[kHost];
  return bytes;
}

BytesByClass CudaRankDevice::peak_bytes() const {
  constexpr int kHost = static_cast<int>(MemoryClass::kHost);
  BytesByClass bytes = ledger_->peak_bytes();
  bytes[kHost] += offloaded_->allocator().peak_bytes()[kHost];
  return bytes;
}

void CudaRankDevice::ReleaseUnused() {
  ReleaseUnusedMemory([this] { holds_->Trim(); });
}

// ---- Jobs.

std::unique_ptr<CudaRankDevice::OpenJob>& CudaRankDevice::Open() {
  thread_local std::unique_ptr<OpenJob> open;
  return open;
}

CudaRankDevice::OpenJob* CudaRankDevice::OwnOpenJob() const {
  OpenJob* const open = Open().get();
  return open != nullptr && open->device == this ? open : nullptr;
}

CudaRankDevice::OpenJob& CudaRankDevice::RequireJob(const char* what) const {
  OpenJob* const open = OwnOpenJob();
  if (open == nullptr) Die(what);
  return *open;
}

int CudaRankDevice::lane() const {
  const OpenJob* const open = OwnOpenJob();
  return open != nullptr ? open->lane : 0;
}

c10::cuda::CUDAStream CudaRankDevice::stream() {
  if (const OpenJob* const open = OwnOpenJob(); open != nullptr) return streams_.lanes[open->lane];
  MutexLock lock(mutex_);
  outside_ = true;
  for (const std::shared_ptr<CudaFence>& end : ends_) {
    if (end != nullptr) end->Precede(streams_.lanes[0]);
  }
  return streams_.lanes[0];
}

int CudaRankDevice::LaneOf(const Job& job, bool overlapped) {
  has_pairs_ = has_pairs_ || overlapped;
  if (!has_pairs_) return 0;
  const std::tuple pass(job.step, job.stage, job.microbatch);
  if (HasMicrobatch(job.kind) && job.kind != JobKind::kForward) {
    const auto found = lane_of_pass_.find(pass);
    if (found == lane_of_pass_.end()) return 0;
    const int lane = found->second;
    if (job.kind != JobKind::kBackwardInput) lane_of_pass_.erase(found);
    return lane;
  }
  const int lane =
      lane_of_stage_.try_emplace(job.stage, static_cast<int>(lane_of_stage_.size()) % CudaStreams::kLanes)
          .first->second;
  if (job.kind == JobKind::kForward && lane != 0) {
    lane_of_pass_[pass] = lane;
    // Forwards whose backward is on another rank leave their entries behind.
    constexpr int kSteps = 64;
    while (std::get<0>(lane_of_pass_.begin()->first) < job.step - kSteps)
      lane_of_pass_.erase(lane_of_pass_.begin());
  }
  return lane;
}

// Makes what LibTorch makes for a thread and stream at first use and keeps, so that no class of the job is
// charged with it and no capture meets it first.
void CudaRankDevice::PrepareLibraries(const c10::cuda::CUDAStream& stream) {
  thread_local std::set<cudaStream_t> prepared;
  if (!prepared.insert(stream.stream()).second) return;
  const CudaScope scope(ledger_, MemoryClass::kBuffers, Tallied::kNo);
  (void)at::cuda::getCurrentCUDABlasHandle();
  (void)at::cuda::getCUDABlasLtWorkspace();
}

// Puts the job behind what it may read.
void CudaRankDevice::OrderJob(OpenJob& open, bool overlapped) {
  const c10::cuda::CUDAStream& stream = streams_.lanes[open.lane];
  if (!std::exchange(ordered_behind_default_, true)) {
    const auto made = CudaFence::Record(c10::cuda::getDefaultCUDAStream(stream.device_index()));
    for (const c10::cuda::CUDAStream& lane : streams_.lanes) made->Precede(lane);
  }
  if (overlapped && first_start_ != nullptr) {
    first_start_->Precede(stream);
    return;
  }
  for (const std::shared_ptr<CudaFence>& end : ends_) {
    if (end != nullptr) end->Precede(stream);
  }
  if (std::exchange(outside_, false)) {
    outside_end_ = CudaFence::Record(streams_.lanes[0]);
    if (open.lane != 0) outside_end_->Precede(stream);
  }
}

void CudaRankDevice::StartJob(OpenJob& open, const Job& job, bool overlapped) {
  holds_->Trim();
  {
    MutexLock lock(mutex_);
    open.lane = LaneOf(job, overlapped);
  }
  const c10::cuda::CUDAStream& stream = streams_.lanes[open.lane];
  open.guard.emplace(stream);
  MutexLock not_captured(captures_[open.lane]);
  PrepareLibraries(stream);
  MutexLock lock(mutex_);
  ++open_on_[open.lane];
  open.counted = true;
  OrderJob(open, overlapped);
  open.job->Start(stream);
  if (!overlapped) first_start_ = open.job->start();
}

void CudaRankDevice::BeginJob(const Job& job, bool overlapped) {
  if (Open() != nullptr) Die("a job began on a thread that has not ended another");
  if (options_.mark_jobs) nvtxRangePushA(Describe(job).c_str());
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  Open() = std::make_unique<OpenJob>();
  OpenJob& open = *Open();
  open.device = this;
  open.job = std::make_shared<CudaJob>(job, clock_, slots_, holds_);
  open.was_multithreaded = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
  // A failure here fails the job, whose fence reports it.
  const absl::Status begun = Guarded("beginning the job", [&] {
    StartJob(open, job, overlapped);
    if (!overlapped) ledger_->BeginJob();
    return absl::OkStatus();
  });
  if (!begun.ok()) open.job->Fail(begun);
}

void CudaRankDevice::FinishJob(OpenJob& open) {
  {
    // Both of a pair may be on this lane, and end at once: others wait for the later end.
    MutexLock lock(mutex_);
    open.job->End(streams_.lanes[open.lane]);
    ends_[open.lane] = open.job->end();
    if (std::exchange(open.counted, false)) --open_on_[open.lane];
    HoldDropped();
  }
  open.host_copies.HoldRest(*holds_);
}

// Holds memory that the rank has dropped. No job that begins from now on uses it, but perhaps jobs that were
// given to the lanes, and one that another thread is enqueuing.
void CudaRankDevice::HoldDropped() {
  const CudaHolds::Owners dropped = late_.TakeDropped();
  dropped_.insert(dropped_.end(), dropped.begin(), dropped.end());
  for (const std::shared_ptr<CudaFence>& end : ends_) {
    if (end != nullptr) holds_->Add(end, dropped_);
  }
  if (open_on_[0] + open_on_[1] == 0) dropped_.clear();
}

std::shared_ptr<LaunchedJob> CudaRankDevice::EndJob() {
  OpenJob& open = RequireJob("a job ended that this thread has not begun");
  const absl::Status ended = Guarded("ending the job", [&] {
    FinishJob(open);
    return absl::OkStatus();
  });
  if (!ended.ok()) {
    open.job->Fail(ended);
    // Nobody will know when the device is done with these; the run ends.
    for (std::shared_ptr<void>& source : open.host_copies.TakeSources()) KeepForever(std::move(source));
  }
  if (open.counted) {
    MutexLock lock(mutex_);
    --open_on_[open.lane];
  }
  c10::AutogradState::get_tls_state().set_multithreading_enabled(open.was_multithreaded);
  std::shared_ptr<LaunchedJob> job = open.job;
  Open().reset();
  if (options_.mark_jobs) nvtxRangePop();
  return job;
}

void CudaRankDevice::ReportLoss(const at::Tensor& loss) {
  OpenJob& open = RequireJob("a loss was reported outside of a job");
  if (open.capturing) Die("a loss was reported in captured work");
  const absl::Status done = Guarded("reporting the loss", [&] {
    open.job->ReportLoss(loss, streams_.lanes[open.lane]);
    return absl::OkStatus();
  });
  if (!done.ok()) open.job->Fail(done);
}

void CudaRankDevice::ReportSquares(const Tensor& limbs) {
  OpenJob& open = RequireJob("a norm was reported outside of a job");
  if (open.capturing) Die("a norm was reported in captured work");
  const absl::Status done = Guarded("reporting the norm", [&] {
    open.job->ReportSquares(limbs, streams_.lanes[open.lane]);
    return absl::OkStatus();
  });
  if (!done.ok()) open.job->Fail(done);
}

// ---- Order.

absl::Status CudaRankDevice::Wait(const std::shared_ptr<Fence>& ready, const c10::cuda::CUDAStream& stream) {
  if (ready == nullptr) return absl::OkStatus();
  if (const std::shared_ptr<CudaFence> point = PointOf(*ready)) {
    point->Precede(stream);
    return absl::OkStatus();
  }
  // A stream cannot wait for this fence, or the job failed before it had an end.
  const absl::StatusOr<bool> reached = ready->Reached();
  if (!reached.ok()) return reached.status();
  if (*reached) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a tensor came with a fence that is not of this device and has not been reached");
}

Tensor CudaRankDevice::Await(Tensor tensor) {
  if (tensor.owner == nullptr || tensor.place == MemoryPlace::kHost) return tensor;
  OpenJob* const open = OwnOpenJob();
  if (open != nullptr && open->capturing) Die("a tensor was awaited in captured work");
  const absl::Status done = Guarded("waiting for a tensor", [&] {
    const c10::cuda::CUDAStream on = stream();
    if (absl::Status waited = Wait(tensor.ready, on); !waited.ok()) return waited;
    if (!IsBlockOf(tensor, on)) tensor = late_.Guard(std::move(tensor));
    return absl::OkStatus();
  });
  if (!done.ok() && open != nullptr) open->job->Fail(done);
  if (!done.ok() && open == nullptr) std::fprintf(stderr, "%s\n", done.ToString().c_str());
  return tensor;
}

// ---- Copies.

absl::Status CudaRankDevice::OrderToHost(const Tensor& tensor) {
  const c10::cuda::CUDAStream& copies = streams_.to_host;
  if (const OpenJob* const open = OwnOpenJob(); open != nullptr) {
    CudaFence::Record(streams_.lanes[open->lane])->Precede(copies);
  } else if (tensor.ready == nullptr) {
    // The copies wait only for work that was enqueued outside of jobs: a job of another thread may be
    // capturing the lane, and an event that is recorded there would take the copies into its graph.
    MutexLock lock(mutex_);
    const auto made = outside_ ? CudaFence::Record(streams_.lanes[0]) : outside_end_;
    if (made != nullptr) made->Precede(copies);
  }
  return Wait(tensor.ready, copies);
}

absl::StatusOr<Tensor> CudaRankDevice::CopyToHost(const Tensor& tensor, HostUse use) {
  OpenJob* const open = OwnOpenJob();
  if (open != nullptr && open->capturing) {
    return absl::FailedPreconditionError("copies to the host cannot be captured");
  }
  const c10::cuda::CUDAStream& copies = streams_.to_host;
  absl::StatusOr<Tensor> host =
      (use == HostUse::kOffload ? offloaded_ : transferred_)->New(tensor.shape, tensor.bytes);
  if (!host.ok()) return host;
  if (absl::Status ordered = OrderToHost(tensor); !ordered.ok()) return ordered;
  C10_CUDA_CHECK(
      cudaMemcpyAsync(host->data, tensor.data, tensor.bytes, cudaMemcpyDeviceToHost, copies.stream()));
  const std::shared_ptr<CudaFence> copied = CudaFence::Record(copies);
  CudaHolds::Owners until_copied = {host->owner};
  if (use == HostUse::kOffload && open != nullptr) {
    open->host_copies.Add(copied, tensor.owner, tensor.bytes, streams_.lanes[open->lane]);
  } else {
    until_copied.push_back(tensor.owner);
  }
  holds_->Add(copied, std::move(until_copied));
  host->ready = copied;
  if (use == HostUse::kTransfer) host->ready = std::make_shared<CopiedFence>(copied, holds_);
  host->made_ns = tensor.made_ns;
  return host;
}

absl::StatusOr<Tensor> CudaRankDevice::ToHost(const Tensor& tensor, HostUse use) {
  if (tensor.place == MemoryPlace::kHost) return tensor;
  absl::StatusOr<Tensor> host;
  const absl::Status done = Guarded("copying a tensor to the host", [&] {
    host = CopyToHost(tensor, use);
    return host.status();
  });
  if (!done.ok()) return done;
  return host;
}

absl::StatusOr<Tensor> CudaRankDevice::PageLocked(const Tensor& tensor) {
  cudaPointerAttributes attributes{};
  C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, tensor.data));
  if (attributes.type != cudaMemoryTypeUnregistered) return tensor;
  if (tensor.ready != nullptr) {
    const absl::StatusOr<bool> there = tensor.ready->Reached();
    if (!there.ok()) return there.status();
    if (!*there) return absl::FailedPreconditionError("a tensor in ordinary host memory is not there yet");
  }
  absl::StatusOr<Tensor> locked = transferred_->New(tensor.shape, tensor.bytes);
  if (!locked.ok()) return locked;
  std::memcpy(locked->data, tensor.data, tensor.bytes);
  return locked;
}

absl::StatusOr<Tensor> CudaRankDevice::CopyToDevice(const Tensor& tensor, MemoryClass memory_class) {
  if (const OpenJob* const open = OwnOpenJob(); open != nullptr && open->capturing) {
    return absl::FailedPreconditionError("copies to the device cannot be captured");
  }
  const c10::cuda::CUDAStream& copies = streams_.to_device;
  absl::StatusOr<Tensor> there = NewCudaTensor(ledger_, tensor.shape, tensor.bytes, memory_class, copies);
  if (!there.ok()) return there;
  absl::StatusOr<Tensor> from = PageLocked(tensor);
  if (!from.ok()) return from;
  if (absl::Status ordered = Wait(tensor.ready, copies); !ordered.ok()) return ordered;
  C10_CUDA_CHECK(
      cudaMemcpyAsync(there->data, from->data, tensor.bytes, cudaMemcpyHostToDevice, copies.stream()));
  const std::shared_ptr<CudaFence> copied = CudaFence::Record(copies);
  holds_->Add(copied, {from->owner});
  there->ready = copied;
  there->made_ns = tensor.made_ns;
  return there;
}

absl::StatusOr<Tensor> CudaRankDevice::ToDevice(const Tensor& tensor, MemoryClass memory_class) {
  if (tensor.place == MemoryPlace::kDevice) return tensor;
  return Make("copying a tensor to the device", [&] { return CopyToDevice(tensor, memory_class); });
}

at::Tensor CudaRankDevice::NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).pinned_memory(true));
}

absl::Status CudaRankDevice::CopyAndWait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Guarded("copying", [&] {
    const c10::cuda::CUDAStream on = stream();
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, on.stream()));
    C10_CUDA_CHECK(cudaStreamSynchronize(on.stream()));
    return absl::OkStatus();
  });
}

absl::Status CudaRankDevice::Load(void* to, const void* host, size_t bytes) {
  return CopyAndWait(to, host, bytes, cudaMemcpyHostToDevice);
}

absl::Status CudaRankDevice::ReadBack(void* host, const void* from, size_t bytes) {
  return CopyAndWait(host, from, bytes, cudaMemcpyDeviceToHost);
}

// ---- Graphs.

absl::StatusOr<std::unique_ptr<CapturedWork>> CudaRankDevice::Capture(
    const std::function<absl::Status()>& work, CapturedWork* with) {
  OpenJob& open = RequireJob("work was captured outside of a job");
  MutexLock no_other_begins(captures_[open.lane]);
  {
    // The other job of the pair is enqueuing on this lane.
    MutexLock lock(mutex_);
    if (open_on_[open.lane] > 1) return std::unique_ptr<CapturedWork>();
  }
  open.capturing = true;
  absl::StatusOr<std::unique_ptr<CudaGraph>> graph = CudaGraph::Capture(work, with);
  open.capturing = false;
  if (!graph.ok()) return graph.status();
  return std::unique_ptr<CapturedWork>(*std::move(graph));
}

}  // namespace weft
