// Fakes the few functions of the CUDA runtime and of NCCL that worker/shell/cuda/nccl_communicator.cc uses,
// without a GPU: streams are threads, device memory is the host's, the processes of a group are threads of
// this one.
//
// The fake is faithful in what the adapter must get right. A stream does its work later and in order. An
// event is reached when the stream has come to it, and is of the device that its thread had chosen, which
// must be the stream's. A communicator that does not block answers ncclInProgress, has nothing on the stream
// and must not be used before ncclCommGetAsyncError has said ncclSuccess; it is of its thread's device, and
// so are its streams. An operation ends when all members have started it, and not before; members that start
// different operations fail. An abort ends operations under way, and returns when the streams have come past
// all that the communicator has there: not before other communicators' operations in front of it have ended,
// too.
#ifndef WEFT_TESTS_CONFORMANCE_FAKE_CUDA_H_
#define WEFT_TESTS_CONFORMANCE_FAKE_CUDA_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>

namespace weft::testing {

// Appends work to a stream.
void EnqueueFake(cudaStream_t stream, std::function<void()> work);
int FakeDeviceOf(cudaStream_t stream);
// Returns the device of the calling thread.
int CurrentFakeDevice();

// Makes later calls of communicators answer ncclInProgress until they have been asked about so many times.
void SetFakeNcclPolls(int polls);
// Makes such calls enqueue nothing while held, so that no abort of their communicators returns.
void HoldFakeNcclCalls(bool held);
// Gives every member of every group this asynchronous error from now on, until it is set back to ncclSuccess.
void SetFakeNcclError(ncclResult_t error);
// Makes the next operation that all its members have come to hang until its communicators are aborted.
void HangNextFakeOperation();
// Counts communicators whose abort has not returned, and operations that are enqueued and not done.
int FakeCommunicators();
// Waits until there are no more than `count` communicators, as nobody waits for aborts; false after a minute.
bool AwaitFakeCommunicators(int count);
int FakeOperations();
// Counts operations that have been done since the process started, by any member.
int FakeOperationsDone();

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_FAKE_CUDA_H_
