// Moves what a forward saves for its backward to host memory, and brings it back when the backward asks.
//
// While a HostOffload lives, every tensor that LibTorch's graph saves on this thread is copied into a block
// of the host arena, and the graph refers to that block only: the bytes in the rank's own memory are free as
// soon as the forward itself no longer needs them. The backward gets a copy in the rank's memory, made when
// the node that saved the tensor runs, dropped after it. Tensors that share bytes share one copy, there and
// back. Values, strides and alignment are kept, so the bits of the gradients are the same. Parameters stay
// where they are.
//
// It rests on LibTorch's hooks for saved tensors, which C++ reaches through the autograd engine: a derived
// engine hands them out. Private to the adapter of LibTorch. Threads: a scope ends on the thread that began
// it; the backward may run on any one thread. Failure: c10::OutOfMemoryError where an arena has no memory.
#ifndef WEFT_WORKER_SHELL_COMPUTE_HOST_OFFLOAD_H_
#define WEFT_WORKER_SHELL_COMPUTE_HOST_OFFLOAD_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <utility>

#include "worker/shell/compute/segment_allocator.h"

namespace weft {

class HostOffload {
 public:
  // The arenas must outlive the graphs that are made in the scope; `parameters` is the storage of those that
  // stay.
  HostOffload(SegmentAllocator* device, SegmentAllocator* host, const c10::StorageImpl* parameters);
  ~HostOffload();
  HostOffload(const HostOffload&) = delete;
  HostOffload& operator=(const HostOffload&) = delete;

  // The innermost scope of this thread, or null.
  static HostOffload* Current();

  // One storage's bytes while they are away.
  struct Away {
    Tensor host;
    SegmentAllocator* device;
    c10::weak_intrusive_ptr<c10::StorageImpl> back;  // of the copy in the rank's memory, while there is one

    c10::Storage Fetch();
  };

  bool Stays(const at::Tensor& tensor) const;
  std::shared_ptr<Away> Send(const at::Tensor& tensor);

 private:
  SegmentAllocator* const device_;
  SegmentAllocator* const host_;
  const c10::StorageImpl* const parameters_;
  HostOffload* const outer_;
  // By storage and how often it was written. The weak reference keeps the address from being used again.
  struct Sent {
    c10::weak_intrusive_ptr<c10::StorageImpl> from;
    std::shared_ptr<Away> away;
  };
  std::map<std::pair<const c10::StorageImpl*, uint32_t>, Sent> sent_;
};

// Makes the engine of this process the one that hands out the hooks; once, before the first graph. Outside of
// scopes nothing changes.
void InstallOffloadEngine();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_HOST_OFFLOAD_H_
