// Updates a range of a stage's flat buffer: the optimizer's step for trained parameters, moving averages for
// statistics.
//
// A statistic moves to `running * (1 - momentum) + (sum / B) * momentum`, where `sum` is
// the sum of the measurements of the step's B micro-batches. It has no optimizer state (the numbers there
// stay as they are), no weight decay and no learning rate. Each element's result depends on that element
// alone, as elementwise.h says, so a slice gives the same bits as the whole. Thread-compatible.
#ifndef WEFT_WORKER_SHELL_COMPUTE_STAGE_UPDATE_H_
#define WEFT_WORKER_SHELL_COMPUTE_STAGE_UPDATE_H_

#include <cstdint>

#include "worker/shell/compute/flat_math.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"

namespace weft {

// Computes out = weights after the step, for elements [begin, begin + n) of the buffer that `layout`
// describes, which the other pointers point at, in the memory of `math`; `out` may be `weights`. `gradient`
// is the sum over `microbatches`; `factor` as in Optimizer. Requires optimizer.Begin(..).
void UpdateRange(const FlatMath& math, const Optimizer& optimizer, const StageLayout& layout,
                 int microbatches, int64_t begin, int64_t n, const float* weights, float* out,
                 const float* gradient, const Optimizer::State& state, const float* factor);

// Adds the squares of the trained elements in such a range to the sum in `limbs` (FlatMath::AddSquares);
// statistics have no part in a norm.
void AddSquares(const FlatMath& math, const StageLayout& layout, int64_t begin, int64_t n,
                const float* gradient, uint64_t* limbs);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_STAGE_UPDATE_H_
