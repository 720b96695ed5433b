#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "tests/conformance/fake_cuda.h"

namespace {

enum class Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter };

// One operation as a member starts it.
struct Part {
  Kind kind = Kind::kAllReduce;
  size_t count = 0;  // of what a member gives
  int root = 0;
  const float* from = nullptr;
  float* to = nullptr;
};

// One operation of a group: members come to it, and it is done when all are there.
struct Meeting {
  std::vector<std::vector<float>> given;  // by member
  std::vector<Part> parts;
  std::vector<bool> here;
  int arrived = 0;
  bool hangs = false;
};

// The members of a group that have come together by an id.
struct Clique {
  int size = 0, joined = 0, members = 0;
  std::vector<bool> here, gone;
  std::map<int64_t, Meeting> meetings;  // by the operation's number
  ncclResult_t error = ncclSuccess;
};

weft::Mutex mu;
weft::CondVar changed;
std::map<std::string, std::shared_ptr<Clique>> cliques;
int polls_of_calls = 0, communicators = 0, operations = 0, operations_done = 0;
bool calls_held = false, next_hangs = false;
ncclResult_t injected = ncclSuccess;
int64_t next_id = 1;

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  int polls_remaining = 0;                    // before the last call is over
  std::vector<std::function<void()>> called;  // what it enqueues, on a thread of its own if it does not block
  std::thread caller;
  int64_t next_operation = 0;
  // Shared with what is on streams.
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<int> on_streams = std::make_shared<int>(0);  // under mu
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<std::function<ncclResult_t()>> grouped;

// Members notice that one has left an operation that others have come to.
void LookForGone(Clique& clique) {
  for (const auto& [number, meeting] : clique.meetings) {
    for (int m = 0; m < clique.size; ++m) {
      if (meeting.arrived > 0 && clique.gone[m] && !meeting.here[m] && clique.error == ncclSuccess)
        clique.error = ncclRemoteError;
    }
  }
}

// Runs on the stream's thread.
void Meet(const std::shared_ptr<Clique>& clique, int rank, int64_t number, const Part& part,
          const std::atomic<bool>& aborted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  Meeting& meeting = clique->meetings[number];
  meeting.given.resize(clique->size);
  meeting.parts.resize(clique->size);
  meeting.here.resize(clique->size);
  meeting.here[rank] = true;
  if (part.from != nullptr) meeting.given[rank].assign(part.from, part.from + part.count);
  meeting.parts[rank] = part;
  ++meeting.arrived;
  LookForGone(*clique);
  changed.SignalAll();
  if (meeting.arrived == clique->size) meeting.hangs = std::exchange(next_hangs, false);
  while ((meeting.arrived < clique->size || meeting.hangs) && !aborted) changed.Wait(mu);
  --operations;
  if (aborted) return;
  for (const Part& other : meeting.parts) {
    if (other.kind != part.kind || other.count != part.count || other.root != part.root)
      clique->error = ncclInvalidUsage;
  }
  if (clique->error != ncclSuccess) return;
  ++operations_done;
  if (part.kind == Kind::kBroadcast) {
    std::memcpy(part.to, meeting.given[part.root].data(), part.count * sizeof(float));
  } else if (part.kind == Kind::kAllGather) {
    for (int m = 0; m < clique->size; ++m)
      std::memcpy(part.to + m * part.count, meeting.given[m].data(), part.count * sizeof(float));
  } else if (part.kind != Kind::kReduce || part.root == rank) {
    const bool scatters = part.kind == Kind::kReduceScatter;
    const size_t n = scatters ? part.count / clique->size : part.count, first = scatters ? rank * n : 0;
    for (size_t i = 0; i < n; ++i) {
      float sum = meeting.given[0][first + i];
      for (int m = 1; m < clique->size; ++m) sum += meeting.given[m][first + i];
      part.to[i] = sum;
    }
  }
}

ncclResult_t StartNow(ncclComm_t comm, cudaStream_t stream, const Part& part) {
  weft::MutexLock lock(mu);
  if (comm->clique->joined < comm->clique->size || comm->polls_remaining > 0) return ncclInvalidUsage;
  if (weft::testing::FakeDeviceOf(stream) != comm->device) return ncclInvalidArgument;
  ++operations;
  ++*comm->on_streams;
  const int64_t number = comm->next_operation++;
  comm->called.push_back([stream, clique = comm->clique, rank = comm->rank, number, part,
                          aborted = comm->aborted, on_streams = comm->on_streams] {
    weft::testing::EnqueueFake(stream, [=] {
      weft::MutexLock on_stream(mu);
      Meet(clique, rank, number, part, *aborted);
      --*on_streams;
      changed.SignalAll();
    });
  });
  return ncclSuccess;
}

void EnqueueCalled(ncclComm_t comm) {
  for (const auto& enqueue : comm->called) enqueue();
  comm->called.clear();
}

ncclResult_t EndCall(ncclComm_t comm) {
  weft::MutexLock lock(mu);
  comm->polls_remaining = polls_of_calls;
  if (comm->polls_remaining == 0) {
    EnqueueCalled(comm);
    return ncclSuccess;
  }
  if (comm->caller.joinable()) comm->caller.join();  // it has come to its end before this call was allowed
  comm->caller = std::thread([comm] {
    weft::MutexLock calling(mu);
    while (calls_held) changed.Wait(mu);
    EnqueueCalled(comm);
  });
  return ncclInProgress;
}

thread_local ncclComm_t group_comm = nullptr;

ncclResult_t Start(ncclComm_t comm, cudaStream_t stream, const Part& part) {
  if (group_depth > 0) {
    group_comm = comm;
    grouped.push_back([comm, stream, part] { return StartNow(comm, stream, part); });
    return ncclSuccess;
  }
  const ncclResult_t result = StartNow(comm, stream, part);
  return result == ncclSuccess ? EndCall(comm) : result;
}

}  // namespace

namespace weft::testing {

void SetFakeNcclPolls(int polls) {
  MutexLock lock(mu);
  polls_of_calls = polls;
}
void HoldFakeNcclCalls(bool held) {
  MutexLock lock(mu);
  calls_held = held;
  changed.SignalAll();
}
void SetFakeNcclError(ncclResult_t error) {
  MutexLock lock(mu);
  injected = error;
}
void HangNextFakeOperation() {
  MutexLock lock(mu);
  next_hangs = true;
}
int FakeCommunicators() {
  MutexLock lock(mu);
  return communicators;
}
bool AwaitFakeCommunicators(int count) {
  constexpr int64_t kMinute = 60'000'000'000;
  MutexLock lock(mu);
  while (communicators > count) {
    if (changed.WaitWithTimeout(mu, kMinute)) return false;
  }
  return true;
}
int FakeOperations() {
  MutexLock lock(mu);
  return operations;
}
int FakeOperationsDone() {
  MutexLock lock(mu);
  return operations_done;
}

}  // namespace weft::testing

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "an error of the fake";
  }
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  weft::MutexLock lock(mu);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &next_id, sizeof next_id);
  ++next_id;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidArgument;
  weft::MutexLock lock(mu);
  std::shared_ptr<Clique>& clique = cliques[std::string(id.internal, sizeof id.internal)];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = size;
    clique->here.assign(size, false);
    clique->gone.assign(size, false);
  }
  if (clique->size != size || rank < 0 || rank >= size || clique->here[rank]) return ncclInvalidArgument;
  clique->here[rank] = true;
  ++clique->joined;
  ++clique->members;
  ++communicators;
  *comm = new ncclComm{clique, rank, weft::testing::CurrentFakeDevice()};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  weft::MutexLock lock(mu);
  *error = injected != ncclSuccess              ? injected
           : comm->clique->error != ncclSuccess ? comm->clique->error
           : comm->clique->joined < comm->clique->size || comm->polls_remaining > 0 || !comm->called.empty()
               ? ncclInProgress
               : ncclSuccess;
  if (comm->polls_remaining > 0) --comm->polls_remaining;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  // The real one makes a context on the thread's device, whichever that is.
  if (weft::testing::CurrentFakeDevice() != comm->device) {
    std::fprintf(stderr, "fake NCCL: a communicator of device %d is aborted with device %d chosen\n",
                 comm->device, weft::testing::CurrentFakeDevice());
    std::abort();
  }
  // The call that is in progress goes on to its end.
  if (comm->caller.joinable()) comm->caller.join();
  weft::MutexLock lock(mu);
  *comm->aborted = true;
  comm->clique->gone[comm->rank] = true;
  LookForGone(*comm->clique);
  changed.SignalAll();
  while (*comm->on_streams > 0) changed.Wait(mu);
  --comm->clique->members;
  --communicators;
  changed.SignalAll();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (const auto& start : grouped) {
    if (result == ncclSuccess) result = start();
  }
  const bool any = !grouped.empty();
  grouped.clear();
  ncclComm_t comm = std::exchange(group_comm, nullptr);
  return result == ncclSuccess && any ? EndCall(comm) : result;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  return Start(comm, stream,
               {Kind::kAllReduce, count, 0, static_cast<const float*>(from), static_cast<float*>(to)});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  return Start(comm, stream,
               {Kind::kAllGather, count, 0, static_cast<const float*>(from), static_cast<float*>(to)});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  return Start(comm, stream,
               {Kind::kReduceScatter, count * comm->clique->size, 0, static_cast<const float*>(from),
                static_cast<float*>(to)});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  // The tensors of the others are not read.
  return Start(comm, stream,
               {Kind::kBroadcast, count, root, comm->rank == root ? static_cast<const float*>(from) : nullptr,
                static_cast<float*>(to)});
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  return Start(comm, stream,
               {Kind::kReduce, count, root, static_cast<const float*>(from), static_cast<float*>(to)});
}

}  // extern "C"
