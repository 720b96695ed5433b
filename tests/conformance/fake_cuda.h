// The few functions of the CUDA runtime and of NCCL that worker/shell/cuda/nccl_collectives.cc uses, without
// a GPU: streams are threads, device memory is the host's, the processes of a group are threads of this one.
//
// Faithful in what the adapter must get right: a stream does its work later and in order; an event is reached
// when the stream has come to it; a communicator that does not block answers ncclInProgress and must not be
// used before ncclCommGetAsyncError has said ncclSuccess; an operation ends when all members have started it,
// and not before; members that start different operations fail; an abort ends what is under way.
#ifndef WEFT_TESTS_CONFORMANCE_FAKE_CUDA_H_
#define WEFT_TESTS_CONFORMANCE_FAKE_CUDA_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>

namespace weft::testing {

// Appends work to a stream.
void EnqueueFake(cudaStream_t stream, std::function<void()> work);

// Calls of communicators that are made after this answer ncclInProgress until they have been asked about so
// many times.
void SetFakeNcclPolls(int polls);
// Every member of every group gets this asynchronous error from now on, until it is set back to ncclSuccess.
void SetFakeNcclError(ncclResult_t error);
// Communicators that are there, and operations that are enqueued and not done.
int FakeCommunicators();
int FakeOperations();
// Operations that have been done since the process started, by any member.
int FakeOperationsDone();

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_FAKE_CUDA_H_
