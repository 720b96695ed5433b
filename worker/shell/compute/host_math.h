// Returns the arithmetic on flat buffers in the host's own memory: done when a call returns. Thread-safe.
#ifndef WEFT_WORKER_SHELL_COMPUTE_HOST_MATH_H_
#define WEFT_WORKER_SHELL_COMPUTE_HOST_MATH_H_

#include "worker/shell/compute/flat_math.h"

namespace weft {

const FlatMath& HostMath();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_HOST_MATH_H_
