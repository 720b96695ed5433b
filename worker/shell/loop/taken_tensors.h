// Notes when tensors that a rank hands out have been taken: when nobody has a gradient any more, and its
// memory is free; when a reader has given weights or a sum back.
//
// Within a budget of bytes the core lets forwards wait for gradients (schedules/dispatch/admission.h), and
// other jobs for versions and sums (schedules/sync/given_tensors.h). A tensor's last copy goes on whichever
// thread has it, some of them with the worker's lock: so its end is noted here, and the driving thread takes
// the notes. Thread-safe. A followed tensor may outlive this object.
#ifndef WEFT_WORKER_SHELL_LOOP_TAKEN_TENSORS_H_
#define WEFT_WORKER_SHELL_LOOP_TAKEN_TENSORS_H_

#include <memory>
#include <vector>

#include "worker/core/worker_effects.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class TakenTensors {
 public:
  TakenTensors();

  // Has the end of the tensor, and of copies that are made from now on, noted.
  void Follow(const TakenTensor& note, Tensor* tensor);
  // Returns those that have been taken since the last call.
  std::vector<TakenTensor> Take();

 private:
  class Notes;
  const std::shared_ptr<Notes> notes_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_TAKEN_TENSORS_H_
