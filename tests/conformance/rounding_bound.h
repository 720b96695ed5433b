// Bounds how far a float32 training may be from the true one: the tolerance that docs/guide/tolerance.md
// derives.
//
// A correct device computes what an exact one would compute from numbers that are off by rho =
// RelativeRounding(LongestSum(run)) each time they are used (backward error). The effect of that on losses
// and weights is a property of the run, not of the device, and differs between runs by orders of magnitude;
// so it is measured: `disturbed` are trainings in float64 with such errors in them, `truth` is the one
// without.
//
// loss of step t    kJumps max over disturbed |L' - L|  +  rho |L|
// weights after t   kJumps max over disturbed mean|w' - w|
// +  kWeightRoundings t u mean|w|  +  kChangeRoundings u path
//
// the latter for each parameter, with `path` the sum over steps of a step's mean |change|. The added terms
// are the loss's own sum, and the roundings of float32 weights and their update. Float32 trainings are within
// the tolerance of the truth, and within twice of each other. Pure.
#ifndef WEFT_TESTS_CONFORMANCE_ROUNDING_BOUND_H_
#define WEFT_TESTS_CONFORMANCE_ROUNDING_BOUND_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "run/run_spec.h"

namespace weft::testing {

// The unit roundoff of float32, to the nearest.
inline constexpr double kUnitRoundoff = 0x1p-24;
// The number of jumps at once: where a training is not continuous (the kink of a ReLU, the sign in AdamW's
// first step), a device that comes out on the other side has the whole jump, which some disturbed trainings
// have too, but perhaps none that has another one as well.
inline constexpr double kJumps = 2;
// The roundings of a weight in an update: AdamW's decay, that decay's factor, and the sum with the change.
inline constexpr int kWeightRoundings = 3;
// The roundings of the change in an update: AdamW's 15 operations and 8 coefficients, and one to spare.
inline constexpr int kChangeRoundings = 24;

// Returns the number of terms of the longest sum in a training step: of a product forward, of its input's
// gradient (over outputs), of its weight's gradient (over rows and micro-batches), of a norm, a softmax or a
// mean.
int64_t LongestSum(const RunSpec& run);

// Returns sqrt(n) u, relative to the sum of the terms' magnitudes: where roundings are independent and of
// mean zero, the root mean square of a sum's error is below, in any order.
double RelativeRounding(int64_t n);

struct Trajectory {
  using Weights = std::map<std::string, std::vector<double>>;  // by parameter, as in a checkpoint
  std::vector<double> losses;                                  // of each step
  std::map<int, Weights> weights;                              // after so many steps
};

struct Tolerance {
  std::vector<double> losses;
  std::map<int, std::map<std::string, double>> weights;  // mean |difference| of a parameter
};

// Returns the tolerance. `truth` has the weights after each step, from 0 on.
Tolerance ToleranceOf(const RunSpec& run, const Trajectory& truth, const std::vector<Trajectory>& disturbed);

// Returns the mean difference of two parameters' elements.
double MeanDifference(const std::vector<double>& a, const std::vector<double>& b);

// The largest difference in units of the tolerance, and where it is.
struct Excess {
  double ratio = 0;
  std::string where;
};
Excess WorstLoss(const Trajectory& a, const Trajectory& b, const Tolerance& tolerance);
// Compares over all steps after which both have weights.
Excess WorstWeights(const Trajectory& a, const Trajectory& b, const Tolerance& tolerance);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_ROUNDING_BOUND_H_
