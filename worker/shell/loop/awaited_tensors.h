// Keeps tensors for other processes whose bytes a device has still to bring; they are offered when the bytes
// are there.
//
// The thread that drives the process asks now and then; nothing waits here. Not thread-safe; the owner locks.
#ifndef WEFT_WORKER_SHELL_LOOP_AWAITED_TENSORS_H_
#define WEFT_WORKER_SHELL_LOOP_AWAITED_TENSORS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class AwaitedTensors {
 public:
  struct Awaited {
    TensorKey key;
    Tensor tensor;                         // tensor with `ready`
    PeerId peer = -1;                      // peer to which it is offered
    std::shared_ptr<LaunchedJob> made_by;  // job that makes it; null: made before
    int64_t since_ns = 0;
    absl::Status status;  // the device's failure, naming the tensor; set once it is taken
  };

  void Add(Awaited awaited) { awaited_.push_back(std::move(awaited)); }
  // Appends the tensors that are there, or never will be, in the order in which they were added.
  void Poll(std::vector<Awaited>* ready);

  bool empty() const { return awaited_.empty(); }
  // Returns the tensor that was added first. Requires that there is one.
  const Awaited& oldest() const { return awaited_.front(); }

 private:
  std::vector<Awaited> awaited_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_AWAITED_TENSORS_H_
