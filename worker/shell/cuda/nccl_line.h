// Keeps the operations of one GPU's groups in the order in which they were given, on one stream, and calls
// NCCL for them (nccl_communicator.h has the reasons and the promises).
//
// An operation waits for its inputs, then for those before it in the line to have been called, is called, and
// is done when the stream has come past it. Every caller moves all of them on.
//
// A communicator is aborted on a thread of its own: ncclCommAbort waits for the communicator's own threads
// and for its work on the stream. That work may stand behind an operation of another group which is stuck
// until it is aborted too, maybe by the thread that would wait here. Nobody waits for the aborting thread;
// callers ask whether it has ended.
//
// Thread-safe. Ownership: shared by groups and fences. When the last goes, the work that remains on the
// stream has a moment to end, and is left with the memory that it uses if it does not.
#ifndef WEFT_WORKER_SHELL_CUDA_NCCL_LINE_H_
#define WEFT_WORKER_SHELL_CUDA_NCCL_LINE_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "schedules/job.h"
#include "worker/shell/cuda/nccl_communicator.h"
#include "worker/shell/memory/fence.h"
#include "worker/shell/memory/tensor.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "communicators that never block need NCCL 2.18");

namespace weft {

// Makes a Status with the last words of NCCL for the communicator, which may be null.
absl::Status NcclError(ncclResult_t result, ncclComm_t comm, absl::string_view doing);

// One member's end of a group. Guarded by the line's lock.
struct NcclMember {
  std::vector<Rank> ranks;
  int self = 0;
  ncclComm_t comm = nullptr;
  bool joined = false;
  int64_t join_until = 0, join_ns = 0, operation_ns = 0;
  absl::Status failure;
  std::shared_ptr<const std::atomic<bool>> aborted;  // once it has failed: true when NCCL is through with it

  // Returns "rank 0, 2 or 3": the members but this one.
  std::string Others() const;
  std::string Name() const;
};

struct NcclOperation {
  enum class State : uint8_t {
    kWaits,    // for its inputs, or for those before it in the line
    kCalling,  // NCCL has been called and has not enqueued all of it yet
    kOnDevice,
    kDone,
  };
  std::string what;  // "the all-reduce of 1024 elements"
  std::shared_ptr<NcclMember> member;
  std::function<ncclResult_t(ncclComm_t, cudaStream_t)> call;
  std::vector<std::shared_ptr<Fence>> ready;  // fences of its inputs
  std::vector<Tensor> uses;
  int64_t until = 0;
  State state = State::kWaits;
  cudaEvent_t event = nullptr;  // event behind it on the stream, once it is there
  absl::Status status;          // result once it is done
};

class NcclLine {
 public:
  NcclLine(int device, StreamWait wait) : device_(device), wait_(std::move(wait)) {}
  ~NcclLine();

  absl::StatusOr<std::shared_ptr<NcclMember>> Join(const ncclUniqueId& id, const std::vector<Rank>& ranks,
                                                   int self, int64_t deadline_ns, int64_t operation_ns);
  absl::StatusOr<bool> Joined(NcclMember& member);
  absl::Status Append(std::shared_ptr<NcclOperation> operation);
  absl::StatusOr<bool> IsDone(const NcclOperation& operation);
  void Leave(NcclMember& member, const absl::Status& cause);

 private:
  absl::Status Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Progress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Advance(NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool InputsReady(NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Call(NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookAtCall(NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Record(NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookAtEvent(NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(NcclOperation& operation, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(NcclMember& member, absl::Status cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeAborted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int device_;
  const StreamWait wait_;
  Mutex mu_;
  cudaStream_t stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<std::shared_ptr<NcclOperation>> line_ ABSL_GUARDED_BY(mu_);
  // Aborted communicators, with the memory of their operations that had been called. That memory stays until
  // none of them can come to the stream any more and the stream has come past them.
  struct Aborted {
    std::shared_ptr<const std::atomic<bool>> over;
    std::vector<Tensor> uses;
    cudaEvent_t event = nullptr;
  };
  bool IsFree(Aborted& aborted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Aborted> aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_NCCL_LINE_H_
