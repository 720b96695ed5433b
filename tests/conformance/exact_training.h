// Trains a run in float64, as one plain loop, with which float32 trainings are compared.
//
// It shares the layers, the initial values and the data with the run; the sums, the averages of batch norms
// and the optimizer's step are written here once more, in float64, so that the comparison tests them too.
// With a `relative` error each number is off whenever it is used: per micro-batch every weight by that factor
// of itself, up or down, and every element of a gradient by that factor of the root mean square of its row
// (of all, where the parameter is a vector). The signs come from `seed`.
#ifndef WEFT_TESTS_CONFORMANCE_EXACT_TRAINING_H_
#define WEFT_TESTS_CONFORMANCE_EXACT_TRAINING_H_

#include <cstdint>

#include "run/run_spec.h"
#include "tests/conformance/rounding_bound.h"

namespace weft::testing {

struct Disturbance {
  double relative = 0;
  uint64_t seed = 0;
  int without_microbatch = -1;  // number of a micro-batch whose gradients are forgotten
};

// Returns the losses, and the weights after each step. For runs of float32 whose micro-batches read the
// newest weights, without dropout, clipping and resumption; on the CPU. A model with dropout ends the process
// and says why: there is none in float64.
Trajectory TrainExactly(const RunSpec& run, const Disturbance& disturbance = {});

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_EXACT_TRAINING_H_
