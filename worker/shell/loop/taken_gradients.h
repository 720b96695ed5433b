// Notes when the gradients that jobs hand out have been taken: when nobody has such a tensor any more, and
// its memory is free.
//
// Under a budget of bytes the core lets forwards wait for that (schedules/dispatch/admission.h). A tensor's
// last copy goes on whichever thread has it, some of them with the worker's lock: so its end is noted here,
// and the driving thread takes the notes. Thread-safe. A followed tensor may outlive this object.
#ifndef WEFT_WORKER_SHELL_LOOP_TAKEN_GRADIENTS_H_
#define WEFT_WORKER_SHELL_LOOP_TAKEN_GRADIENTS_H_

#include <memory>
#include <vector>

#include "worker/core/worker_effects.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class TakenGradients {
 public:
  TakenGradients();

  // Has the end of the gradient noted. Call before it is copied.
  void Follow(const TakenGradient& gradient, Tensor* tensor);
  // Returns those that have been taken since the last call.
  std::vector<TakenGradient> Take();

 private:
  class Notes;
  const std::shared_ptr<Notes> notes_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_TAKEN_GRADIENTS_H_
