// Implements communicators of one GPU over NCCL (communicator.h).
//
// A group is one communicator, made and used without blocking: every call of NCCL returns at once, and a call
// that asks a fence, or whether a group has joined, makes progress. All operations of the device go through
// one line, in the order in which they were given, on one stream of their own: with operations of several
// groups on one GPU, that order, the same on all of them, is what keeps them from waiting for each other in a
// circle (schedules/sync/joint_order.h says where it comes from).
//
// An operation has until its deadline from the moment when it is given. An operation that is late, an
// asynchronous error of NCCL, or Abort ends the group: its communicator is aborted, which ends its kernels on
// the GPU too, and all unfinished operations end with the first cause. NCCL does not say which member is
// missing, so the message names all that may be. Memory that an operation uses stays until the GPU has done
// with it, also after an abort. Threads: as communicator.h says; fences may be asked on any thread.
// Ownership: groups and fences keep the line alive.
#ifndef WEFT_WORKER_SHELL_CUDA_NCCL_COMMUNICATOR_H_
#define WEFT_WORKER_SHELL_CUDA_NCCL_COMMUNICATOR_H_

#include <functional>
#include <memory>

#include "worker/shell/memory/communicator.h"

namespace weft {

// Makes the stream (a cudaStream_t) wait on the GPU for the fence, if it is one of the GPU's own and can be
// waited for. Returns false otherwise, and the line waits for the fence on the host.
using StreamWait = std::function<bool(void* stream, Fence& fence)>;

// Creates the library. `device` is the CUDA ordinal. Whether NCCL works is known when a group joins.
std::unique_ptr<CommunicationLibrary> CreateNcclLibrary(int device, StreamWait wait = nullptr);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_NCCL_COMMUNICATOR_H_
