#include "worker/shell/cuda/nccl_line.h"

#include <chrono>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/monotonic_clock.h"
#include "worker/shell/cuda/cuda_status.h"
#include "worker/shell/memory/keep_forever.h"

namespace weft {
namespace {

constexpr int64_t kLeaving = 3'000'000'000;

std::string Seconds(int64_t ns) { return absl::StrFormat("%.3g s", 1e-9 * static_cast<double>(ns)); }

// Returns a flag that becomes true when NCCL is through with the communicator.
std::shared_ptr<const std::atomic<bool>> BeginAbort(int device, ncclComm_t comm) {
  auto over = std::make_shared<std::atomic<bool>>(comm == nullptr);
  if (comm == nullptr) return over;
  const auto abort = [device, comm, over] {
    // NCCL takes the thread's device for the one to come back to, which for a new thread is another one.
    cudaSetDevice(device);
    ncclCommAbort(comm);
    *over = true;
  };
  try {
    std::thread(abort).detach();
  } catch (const std::system_error&) {
    abort();  // no thread could be made
  }
  return over;
}

}  // namespace

absl::Status NcclError(ncclResult_t result, ncclComm_t comm, absl::string_view doing) {
  const char* last = ncclGetLastError(comm);
  const std::string text =
      absl::StrCat("NCCL: ", ncclGetErrorString(result),
                   last != nullptr && *last != '\0' ? absl::StrCat(" (", last, ")") : "", ", while ", doing);
  // Failures of other processes or the network may not come back at another attempt.
  if (result == ncclRemoteError || result == ncclSystemError) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

std::string NcclMember::Others() const {
  std::vector<Rank> others;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    if (i != self) others.push_back(ranks[i]);
  }
  if (others.empty()) return "nobody";
  if (others.size() == 1) return absl::StrCat("rank ", others[0]);
  const Rank last = others.back();
  others.pop_back();
  return absl::StrCat("rank ", absl::StrJoin(others, ", "), " or ", last);
}

std::string NcclMember::Name() const {
  return absl::StrCat("the group of ranks ", absl::StrJoin(ranks, ", "), " (this is rank ", ranks[self], ")");
}

// Ends the line. Groups and fences are gone, and with the groups their kernels: the work that remains on the
// stream ends at once, or, if the device hangs, never.
NcclLine::~NcclLine() {
  if (stream_ == nullptr) return;
  cudaSetDevice(device_);
  for (const int64_t until = MonotonicNow() + kLeaving;;
       std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    FreeAborted();
    const bool busy = Asked(cudaStreamQuery(stream_)) == cudaErrorNotReady;
    if (!busy && aborted_.empty()) break;
    if (MonotonicNow() < until) continue;
    KeepForever(std::make_shared<std::vector<Aborted>>(std::move(aborted_)));
    return;
  }
  cudaStreamDestroy(stream_);
}

absl::Status NcclLine::Open() {
  cudaError_t error = cudaSetDevice(device_);
  if (error == cudaSuccess && stream_ == nullptr)
    error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  return error == cudaSuccess ? absl::OkStatus()
                              : CudaStatus(error, device_, "making the stream of the collectives");
}

absl::StatusOr<std::shared_ptr<NcclMember>> NcclLine::Join(const ncclUniqueId& id,
                                                           const std::vector<Rank>& ranks, int self,
                                                           int64_t deadline_ns, int64_t operation_ns) {
  MutexLock lock(mu_);
  if (absl::Status s = Open(); !s.ok()) return s;
  FreeAborted();  // communicators of an earlier run
  auto member = std::make_shared<NcclMember>();
  member->ranks = ranks;
  member->self = self;
  member->join_ns = deadline_ns - MonotonicNow();
  member->join_until = deadline_ns;
  member->operation_ns = operation_ns;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      ncclCommInitRankConfig(&member->comm, static_cast<int>(ranks.size()), id, self, &config);
  if (result == ncclSuccess || result == ncclInProgress) return member;
  const absl::Status status = NcclError(result, nullptr, absl::StrCat("joining ", member->Name()));
  Fail(*member, status);
  return status;
}

absl::StatusOr<bool> NcclLine::Joined(NcclMember& member) {
  MutexLock lock(mu_);
  if (!member.failure.ok()) return member.failure;
  if (member.joined) return true;
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = ncclCommGetAsyncError(member.comm, &state);
  if (result == ncclSuccess) result = state;
  if (result == ncclSuccess) return member.joined = true;
  if (result != ncclInProgress) {
    Fail(member, NcclError(result, member.comm, absl::StrCat("joining ", member.Name())));
  } else if (MonotonicNow() >= member.join_until) {
    Fail(member,
         absl::DeadlineExceededError(absl::StrCat(
             "after ", Seconds(member.join_ns), ", ", member.Name(), " is not complete: ", member.Others(),
             " did not join; check that their processes live and that NCCL finds a path between the machines "
             "(NCCL_DEBUG=INFO shows it)")));
  }
  if (!member.failure.ok()) return member.failure;
  return false;
}

absl::Status NcclLine::Append(std::shared_ptr<NcclOperation> operation) {
  MutexLock lock(mu_);
  NcclMember& member = *operation->member;
  if (!member.failure.ok()) return member.failure;
  if (!member.joined) {
    return absl::FailedPreconditionError(
        absl::StrCat(operation->what, " was given before ", member.Name(), " was complete"));
  }
  operation->until = MonotonicNow() + member.operation_ns;
  line_.push_back(std::move(operation));
  Progress();
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclLine::IsDone(const NcclOperation& operation) {
  MutexLock lock(mu_);
  if (operation.state != NcclOperation::State::kDone) Progress();
  if (operation.state != NcclOperation::State::kDone) return false;
  if (!operation.status.ok()) return operation.status;
  return true;
}

void NcclLine::Leave(NcclMember& member, const absl::Status& cause) {
  MutexLock lock(mu_);
  Fail(member, cause);
  Progress();
}

// Moves every operation as far as it goes. An operation whose call is not over holds back those behind it.
void NcclLine::Progress() {
  cudaSetDevice(device_);
  // The end of one may end others, all of its group; so the line is cleared of them afterwards.
  for (size_t i = 0; i < line_.size(); ++i) {
    const std::shared_ptr<NcclOperation> operation = line_[i];
    if (!Advance(*operation)) break;
  }
  while (!line_.empty() && line_.front()->state == NcclOperation::State::kDone) line_.pop_front();
  FreeAborted();
}

// Moves one operation on. Returns false while those behind it may not be called.
bool NcclLine::Advance(NcclOperation& operation) {
  using State = NcclOperation::State;
  if (operation.state == State::kWaits && InputsReady(operation)) Call(operation);
  if (operation.state == State::kCalling) LookAtCall(operation);
  if (operation.state == State::kOnDevice) LookAtEvent(operation);
  if (operation.state != State::kDone && MonotonicNow() >= operation.until) {
    NcclMember& member = *operation.member;
    const bool called = operation.state != State::kWaits;
    Fail(member,
         absl::DeadlineExceededError(absl::StrCat(
             operation.what, " in ", member.Name(), " was not done within ", Seconds(member.operation_ns),
             called ? absl::StrCat(": ", member.Others(), " did not come to it, or was lost on the way")
                    : ": what it waits for on this device was not done")));
  }
  return operation.state == State::kDone || operation.state == State::kOnDevice;
}

bool NcclLine::InputsReady(NcclOperation& operation) {
  for (std::shared_ptr<Fence>& fence : operation.ready) {
    if (fence == nullptr) continue;
    if (wait_ != nullptr && wait_(stream_, *fence)) {
      fence = nullptr;
      continue;
    }
    const absl::StatusOr<bool> reached = fence->Reached();
    if (!reached.ok()) {
      Fail(*operation.member, reached.status());
      return false;
    }
    if (!*reached) return false;
    fence = nullptr;
  }
  return true;
}

void NcclLine::Call(NcclOperation& operation) {
  operation.state = NcclOperation::State::kCalling;
  const ncclResult_t result = operation.call(operation.member->comm, stream_);
  if (result == ncclSuccess || result == ncclInProgress) return;
  Fail(*operation.member,
       NcclError(result, operation.member->comm,
                 absl::StrCat("starting ", operation.what, " in ", operation.member->Name())));
}

void NcclLine::LookAtCall(NcclOperation& operation) {
  NcclMember& member = *operation.member;
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = ncclCommGetAsyncError(member.comm, &state);
  if (result == ncclSuccess) result = state;
  if (result == ncclSuccess) return Record(operation);
  if (result == ncclInProgress) return;
  Fail(member,
       NcclError(result, member.comm, absl::StrCat("starting ", operation.what, " in ", member.Name())));
}

void NcclLine::Record(NcclOperation& operation) {
  cudaError_t error = cudaEventCreateWithFlags(&operation.event, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaEventRecord(operation.event, stream_);
  operation.state = NcclOperation::State::kOnDevice;
  if (error != cudaSuccess) Fail(*operation.member, CudaStatus(error, device_, operation.what));
}

// Looks whether the operation is done. After an error of NCCL the stream may come past it though it has not
// been done.
void NcclLine::LookAtEvent(NcclOperation& operation) {
  NcclMember& member = *operation.member;
  const cudaError_t error = Asked(cudaEventQuery(operation.event));
  if (error != cudaSuccess && error != cudaErrorNotReady)
    return Fail(member, CudaStatus(error, device_, operation.what));
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = ncclCommGetAsyncError(member.comm, &state);
  if (result == ncclSuccess) result = state;
  // A later call of the same communicator may be in progress.
  if (result != ncclSuccess && result != ncclInProgress) {
    return Fail(member, NcclError(result, member.comm,
                                  absl::StrCat(operation.what, " in ", member.Name(), " was under way with ",
                                               member.Others())));
  }
  if (error == cudaSuccess) End(operation, absl::OkStatus());
}

void NcclLine::End(NcclOperation& operation, absl::Status status) {
  const bool on_device = operation.state != NcclOperation::State::kWaits;
  operation.state = NcclOperation::State::kDone;
  operation.call = nullptr;
  operation.ready.clear();
  if (!status.ok() && on_device) aborted_.push_back({operation.member->aborted, std::move(operation.uses)});
  if (operation.event != nullptr) cudaEventDestroy(operation.event);
  operation.event = nullptr;
  operation.uses.clear();
  operation.status = std::move(status);
}

// Fails a member. The first cause is the one that counts.
void NcclLine::Fail(NcclMember& member, absl::Status cause) {
  if (!member.failure.ok()) return;
  member.failure = std::move(cause);
  member.aborted = BeginAbort(device_, std::exchange(member.comm, nullptr));
  aborted_.push_back({member.aborted, {}});
  for (const std::shared_ptr<NcclOperation>& operation : line_) {
    if (operation->member.get() == &member && operation->state != NcclOperation::State::kDone)
      End(*operation, member.failure);
  }
}

void NcclLine::FreeAborted() {
  for (size_t i = aborted_.size(); i-- > 0;) {
    if (IsFree(aborted_[i])) aborted_.erase(aborted_.begin() + static_cast<int64_t>(i));
  }
}

// Returns true if the memory may go. The event is recorded behind the abort: a call that it cut off may have
// enqueued a part until then.
bool NcclLine::IsFree(Aborted& aborted) {
  if (!*aborted.over) return false;
  if (aborted.uses.empty()) return true;
  if (aborted.event == nullptr) {
    if (cudaEventCreateWithFlags(&aborted.event, cudaEventDisableTiming) != cudaSuccess ||
        cudaEventRecord(aborted.event, stream_) != cudaSuccess) {
      (void)cudaGetLastError();  // the device has failed: it does nothing any more
    }
  }
  if (aborted.event == nullptr) return true;
  if (Asked(cudaEventQuery(aborted.event)) == cudaErrorNotReady) return false;
  cudaEventDestroy(aborted.event);
  return true;
}

}  // namespace weft
