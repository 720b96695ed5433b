#include "worker/shell/cuda/nccl_collectives.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/wire/mutex.h"
#include "worker/shell/monotonic_clock.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "communicators that never block need NCCL 2.18");

namespace weft {
namespace {

std::string Seconds(int64_t ns) { return absl::StrFormat("%.3g s", 1e-9 * static_cast<double>(ns)); }

absl::Status CudaError(cudaError_t error, absl::string_view doing) {
  return absl::InternalError(absl::StrCat("CUDA: ", cudaGetErrorString(error), ", while ", doing));
}

absl::Status NcclError(ncclResult_t result, ncclComm_t comm, absl::string_view doing) {
  const char* last = ncclGetLastError(comm);
  const std::string text =
      absl::StrCat("NCCL: ", ncclGetErrorString(result),
                   last != nullptr && *last != '\0' ? absl::StrCat(" (", last, ")") : "", ", while ", doing);
  // What other processes or the network cause may go well at another attempt.
  if (result == ncclRemoteError || result == ncclSystemError) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

int64_t ElementsOf(const Tensor& tensor) { return static_cast<int64_t>(tensor.bytes / sizeof(float)); }

absl::Status CheckFlat(const Tensor& tensor, int64_t elements, absl::string_view what) {
  if (tensor.shape.type == DataType::kFloat32 && ElementsOf(tensor) == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has %d bytes, not those of %d float32 elements", what, tensor.bytes, elements));
}

// One member's end of a group. Guarded by the line's lock.
struct Member {
  std::vector<Rank> ranks;
  int self = 0;
  ncclComm_t comm = nullptr;
  bool joined = false;
  int64_t join_until = 0, join_ns = 0, operation_ns = 0;
  absl::Status failure;

  // "rank 0, 2 or 3": the members but this one.
  std::string Others() const {
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
  std::string Name() const {
    return absl::StrCat("the group of ranks ", absl::StrJoin(ranks, ", "), " (this is rank ", ranks[self],
                        ")");
  }
};

struct Operation {
  enum class State : uint8_t {
    kWaits,    // for what it reads, or for those before it in the line
    kCalling,  // NCCL has been called and has not enqueued all of it yet
    kOnDevice,
    kDone,
  };
  std::string what;  // "the all-reduce of 1024 elements"
  std::shared_ptr<Member> member;
  std::function<ncclResult_t(ncclComm_t, cudaStream_t)> call;
  std::vector<std::shared_ptr<Fence>> ready;  // of what it reads
  std::vector<Tensor> uses;
  int64_t until = 0;
  State state = State::kWaits;
  cudaEvent_t event = nullptr;  // behind it on the stream, once it is there
  absl::Status status;          // once it is done
};

// The device's operations, in order. Thread-safe.
class Line {
 public:
  Line(int device, StreamWait wait) : device_(device), wait_(std::move(wait)) {}
  ~Line();

  absl::StatusOr<std::shared_ptr<Member>> Join(const ncclUniqueId& id, const std::vector<Rank>& ranks,
                                               int self, int64_t deadline_ns, int64_t operation_ns);
  absl::StatusOr<bool> Joined(Member& member);
  absl::Status Append(std::shared_ptr<Operation> operation);
  absl::StatusOr<bool> IsDone(const Operation& operation);
  void Leave(Member& member, const absl::Status& cause);

 private:
  absl::Status Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Progress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Advance(Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool InputsReady(Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Call(Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookAtCall(Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Record(Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookAtEvent(Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(Operation& operation, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(Member& member, absl::Status cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeAborted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int device_;
  const StreamWait wait_;
  Mutex mu_;
  cudaStream_t stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<std::shared_ptr<Operation>> line_ ABSL_GUARDED_BY(mu_);
  // Of operations that were on the device when their group ended: what they use stays until the stream has
  // come past them.
  struct Aborted {
    cudaEvent_t event;
    std::vector<Tensor> uses;
  };
  std::vector<Aborted> aborted_ ABSL_GUARDED_BY(mu_);
};

Line::~Line() {
  if (stream_ == nullptr) return;
  cudaSetDevice(device_);
  // Groups and fences are gone, and with the groups their kernels: what is left on the stream ends at once.
  cudaStreamSynchronize(stream_);
  for (Aborted& a : aborted_) cudaEventDestroy(a.event);
  cudaStreamDestroy(stream_);
}

absl::Status Line::Open() {
  cudaError_t error = cudaSetDevice(device_);
  if (error == cudaSuccess && stream_ == nullptr)
    error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  return error == cudaSuccess ? absl::OkStatus() : CudaError(error, "making the stream of the collectives");
}

absl::StatusOr<std::shared_ptr<Member>> Line::Join(const ncclUniqueId& id, const std::vector<Rank>& ranks,
                                                   int self, int64_t deadline_ns, int64_t operation_ns) {
  MutexLock lock(mu_);
  if (absl::Status s = Open(); !s.ok()) return s;
  auto member = std::make_shared<Member>();
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

absl::StatusOr<bool> Line::Joined(Member& member) {
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
             " did not join; see that their processes live and that NCCL finds a way "
             "between the machines (NCCL_DEBUG=INFO says which it takes)")));
  }
  if (!member.failure.ok()) return member.failure;
  return false;
}

absl::Status Line::Append(std::shared_ptr<Operation> operation) {
  MutexLock lock(mu_);
  Member& member = *operation->member;
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

absl::StatusOr<bool> Line::IsDone(const Operation& operation) {
  MutexLock lock(mu_);
  if (operation.state != Operation::State::kDone) Progress();
  if (operation.state != Operation::State::kDone) return false;
  if (!operation.status.ok()) return operation.status;
  return true;
}

void Line::Leave(Member& member, const absl::Status& cause) {
  MutexLock lock(mu_);
  Fail(member, cause);
  Progress();
}

// Moves every operation as far as it goes. One whose call is not over holds back those behind it.
void Line::Progress() {
  cudaSetDevice(device_);
  // Ending one may end others, all of its group; so the line is cleared of them afterwards.
  for (size_t i = 0; i < line_.size(); ++i) {
    const std::shared_ptr<Operation> operation = line_[i];
    if (!Advance(*operation)) break;
  }
  while (!line_.empty() && line_.front()->state == Operation::State::kDone) line_.pop_front();
  FreeAborted();
}

// False while those behind it may not be called.
bool Line::Advance(Operation& operation) {
  using State = Operation::State;
  if (operation.state == State::kWaits && InputsReady(operation)) Call(operation);
  if (operation.state == State::kCalling) LookAtCall(operation);
  if (operation.state == State::kOnDevice) LookAtEvent(operation);
  if (operation.state != State::kDone && MonotonicNow() >= operation.until) {
    Member& member = *operation.member;
    const bool called = operation.state != State::kWaits;
    Fail(member,
         absl::DeadlineExceededError(absl::StrCat(
             operation.what, " in ", member.Name(), " was not done within ", Seconds(member.operation_ns),
             called ? absl::StrCat(": ", member.Others(), " did not come to it, or was lost on the way")
                    : ": what it waits for on this device was not done")));
  }
  return operation.state == State::kDone || operation.state == State::kOnDevice;
}

bool Line::InputsReady(Operation& operation) {
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

void Line::Call(Operation& operation) {
  operation.state = Operation::State::kCalling;
  const ncclResult_t result = operation.call(operation.member->comm, stream_);
  if (result == ncclSuccess || result == ncclInProgress) return;
  Fail(*operation.member,
       NcclError(result, operation.member->comm,
                 absl::StrCat("starting ", operation.what, " in ", operation.member->Name())));
}

void Line::LookAtCall(Operation& operation) {
  Member& member = *operation.member;
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = ncclCommGetAsyncError(member.comm, &state);
  if (result == ncclSuccess) result = state;
  if (result == ncclSuccess) return Record(operation);
  if (result == ncclInProgress) return;
  Fail(member,
       NcclError(result, member.comm, absl::StrCat("starting ", operation.what, " in ", member.Name())));
}

void Line::Record(Operation& operation) {
  cudaError_t error = cudaEventCreateWithFlags(&operation.event, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaEventRecord(operation.event, stream_);
  operation.state = Operation::State::kOnDevice;
  if (error != cudaSuccess) Fail(*operation.member, CudaError(error, operation.what));
}

// After an error of NCCL the stream may come past the operation though it has not been done.
void Line::LookAtEvent(Operation& operation) {
  Member& member = *operation.member;
  const cudaError_t error = cudaEventQuery(operation.event);
  if (error != cudaSuccess && error != cudaErrorNotReady)
    return Fail(member, CudaError(error, operation.what));
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

void Line::End(Operation& operation, absl::Status status) {
  const bool on_device = operation.state != Operation::State::kWaits;
  operation.state = Operation::State::kDone;
  operation.call = nullptr;
  operation.ready.clear();
  if (!status.ok() && on_device) {
    // A call that was not over may have enqueued a part.
    cudaEvent_t event = operation.event;
    if (event == nullptr && cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess)
      cudaEventRecord(event, stream_);
    aborted_.push_back({event, std::move(operation.uses)});
  } else if (operation.event != nullptr) {
    cudaEventDestroy(operation.event);
  }
  operation.event = nullptr;
  operation.uses.clear();
  operation.status = std::move(status);
}

// The first cause is the one that counts.
void Line::Fail(Member& member, absl::Status cause) {
  if (!member.failure.ok()) return;
  member.failure = std::move(cause);
  cudaSetDevice(device_);
  if (ncclComm_t comm = std::exchange(member.comm, nullptr); comm != nullptr) ncclCommAbort(comm);
  for (const std::shared_ptr<Operation>& operation : line_) {
    if (operation->member.get() == &member && operation->state != Operation::State::kDone)
      End(*operation, member.failure);
  }
}

void Line::FreeAborted() {
  for (size_t i = aborted_.size(); i-- > 0;) {
    if (aborted_[i].event != nullptr && cudaEventQuery(aborted_[i].event) == cudaErrorNotReady) continue;
    if (aborted_[i].event != nullptr) cudaEventDestroy(aborted_[i].event);
    aborted_.erase(aborted_.begin() + static_cast<int64_t>(i));
  }
}

class NcclFence final : public Fence {
 public:
  NcclFence(std::shared_ptr<Line> line, std::shared_ptr<const Operation> operation)
      : line_(std::move(line)), operation_(std::move(operation)) {}
  absl::StatusOr<bool> Reached() override { return line_->IsDone(*operation_); }
  const Line* line() const { return line_.get(); }

 private:
  const std::shared_ptr<Line> line_;
  const std::shared_ptr<const Operation> operation_;
};

class NcclGroup final : public CollectiveGroup {
 public:
  NcclGroup(std::shared_ptr<Line> line, std::shared_ptr<Member> member)
      : line_(std::move(line)), member_(std::move(member)) {}
  // An abort, also at a good end: it does not wait for others, who may be dead. Nobody needs this member any
  // more when its run is forgotten, since that comes after all members have seen all operations done.
  ~NcclGroup() override { Abort(absl::CancelledError("the group is not used any more")); }

  absl::StatusOr<bool> Joined() override { return line_->Joined(*member_); }

  absl::StatusOr<std::shared_ptr<Fence>> AllReduce(const Tensor& from, const Tensor& to) override;
  absl::StatusOr<std::shared_ptr<Fence>> AllGather(const Tensor& slice, const Tensor& to,
                                                   const std::vector<int64_t>& slices) override;
  absl::StatusOr<std::shared_ptr<Fence>> ReduceScatter(const Tensor& from, const Tensor& slice,
                                                       const std::vector<int64_t>& slices) override;
  void Abort(const absl::Status& cause) override { line_->Leave(*member_, cause); }

 private:
  absl::Status CheckSlices(const Tensor& whole, const Tensor& slice,
                           const std::vector<int64_t>& slices) const;
  absl::StatusOr<std::shared_ptr<Fence>> Give(std::string what, const Tensor& from, const Tensor& to,
                                              std::function<ncclResult_t(ncclComm_t, cudaStream_t)> call);

  const std::shared_ptr<Line> line_;
  const std::shared_ptr<Member> member_;
};

absl::StatusOr<std::shared_ptr<Fence>> NcclGroup::Give(
    std::string what, const Tensor& from, const Tensor& to,
    std::function<ncclResult_t(ncclComm_t, cudaStream_t)> call) {
  auto operation = std::make_shared<Operation>();
  operation->what = std::move(what);
  operation->member = member_;
  operation->call = std::move(call);
  for (const std::shared_ptr<Fence>& ready : {from.ready, to.ready}) {
    // What stands before it in the line is done before it in any case.
    const auto* before = dynamic_cast<const NcclFence*>(ready.get());
    if (ready != nullptr && (before == nullptr || before->line() != line_.get()))
      operation->ready.push_back(ready);
  }
  operation->uses = {from, to};
  if (absl::Status s = line_->Append(operation); !s.ok()) return s;
  return std::make_shared<NcclFence>(line_, std::move(operation));
}

absl::StatusOr<std::shared_ptr<Fence>> NcclGroup::AllReduce(const Tensor& from, const Tensor& to) {
  const int64_t n = ElementsOf(from);
  if (absl::Status s = CheckFlat(from, n, "what is summed"); !s.ok()) return s;
  if (absl::Status s = CheckFlat(to, n, "the sum"); !s.ok()) return s;
  const void* const source = from.data;
  void* const target = to.data;
  return Give(absl::StrCat("the all-reduce of ", n, " elements"), from, to,
              [=](ncclComm_t comm, cudaStream_t stream) {
                return ncclAllReduce(source, target, static_cast<size_t>(n), ncclFloat32, ncclSum, comm,
                                     stream);
              });
}

absl::Status NcclGroup::CheckSlices(const Tensor& whole, const Tensor& slice,
                                    const std::vector<int64_t>& slices) const {
  if (slices.size() != member_->ranks.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are %d slices for %d members", slices.size(), member_->ranks.size()));
  }
  const int64_t all = std::accumulate(slices.begin(), slices.end(), int64_t{0});
  if (absl::Status s = CheckFlat(whole, all, "what the slices make"); !s.ok()) return s;
  return CheckFlat(slice, slices[member_->self], "this member's slice");
}

bool AllEqual(const std::vector<int64_t>& slices) {
  return std::all_of(slices.begin(), slices.end(), [&](int64_t n) { return n == slices.front(); });
}

// NCCL's own gathers and scatters take equal slices. Where ours differ, each slice goes to or from its member
// by an operation of its own, all of them started as one.
template <typename Each>
ncclResult_t Grouped(const std::vector<int64_t>& slices, Each each) {
  ncclResult_t result = ncclGroupStart();
  int64_t offset = 0;
  for (size_t i = 0; i < slices.size(); offset += slices[i++]) {
    if (result == ncclSuccess && slices[i] > 0)
      result = each(static_cast<int>(i), offset, static_cast<size_t>(slices[i]));
    if (result == ncclInProgress) result = ncclSuccess;  // the group's end says it
  }
  const ncclResult_t end = ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

absl::StatusOr<std::shared_ptr<Fence>> NcclGroup::AllGather(const Tensor& slice, const Tensor& to,
                                                            const std::vector<int64_t>& slices) {
  if (absl::Status s = CheckSlices(to, slice, slices); !s.ok()) return s;
  const void* const source = slice.data;
  float* const target = static_cast<float*>(to.data);
  return Give(absl::StrCat("the all-gather of ", ElementsOf(to), " elements"), slice, to,
              [=](ncclComm_t comm, cudaStream_t stream) {
                if (AllEqual(slices)) {
                  return ncclAllGather(source, target, static_cast<size_t>(slices.front()), ncclFloat32, comm,
                                       stream);
                }
                return Grouped(slices, [&](int member, int64_t offset, size_t n) {
                  return ncclBroadcast(source, target + offset, n, ncclFloat32, member, comm, stream);
                });
              });
}

absl::StatusOr<std::shared_ptr<Fence>> NcclGroup::ReduceScatter(const Tensor& from, const Tensor& slice,
                                                                const std::vector<int64_t>& slices) {
  if (absl::Status s = CheckSlices(from, slice, slices); !s.ok()) return s;
  const float* const source = static_cast<const float*>(from.data);
  void* const target = slice.data;
  return Give(absl::StrCat("the reduce-scatter of ", ElementsOf(from), " elements"), from, slice,
              [=](ncclComm_t comm, cudaStream_t stream) {
                if (AllEqual(slices)) {
                  return ncclReduceScatter(source, target, static_cast<size_t>(slices.front()), ncclFloat32,
                                           ncclSum, comm, stream);
                }
                return Grouped(slices, [&](int member, int64_t offset, size_t n) {
                  return ncclReduce(source + offset, target, n, ncclFloat32, ncclSum, member, comm, stream);
                });
              });
}

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(int device, StreamWait wait) : line_(std::make_shared<Line>(device, std::move(wait))) {
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess)
      name_ = absl::StrCat("nccl ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  const std::string& name() const override { return name_; }

  absl::StatusOr<std::string> NewGroupId() override {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return NcclError(result, nullptr, "making the id of a group");
    return std::string(id.internal, sizeof id.internal);
  }

  absl::StatusOr<std::unique_ptr<CollectiveGroup>> Join(const std::string& id,
                                                        const std::vector<Rank>& members, int self,
                                                        int64_t deadline_ns, int64_t operation_ns) override {
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the id of a group has %d bytes, not %d", id.size(), sizeof unique.internal));
    }
    if (self < 0 || self >= static_cast<int>(members.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a group of %d members has no member %d", members.size(), self));
    }
    std::memcpy(unique.internal, id.data(), sizeof unique.internal);
    auto member = line_->Join(unique, members, self, deadline_ns, operation_ns);
    if (!member.ok()) return member.status();
    return std::make_unique<NcclGroup>(line_, *std::move(member));
  }

 private:
  std::string name_ = "nccl";
  const std::shared_ptr<Line> line_;
};

}  // namespace

std::unique_ptr<Collectives> CreateNcclCollectives(int device, StreamWait wait) {
  return std::make_unique<NcclCollectives>(device, std::move(wait));
}

}  // namespace weft
