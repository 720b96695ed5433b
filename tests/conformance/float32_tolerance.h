// Compares float32 trainings with the true one, for tests: small runs of both kinds of model, their
// trajectories on a device, and the tolerance of each.
#ifndef WEFT_TESTS_CONFORMANCE_FLOAT32_TOLERANCE_H_
#define WEFT_TESTS_CONFORMANCE_FLOAT32_TOLERANCE_H_

#include <string>

#include "run/run_spec.h"
#include "tests/conformance/rounding_bound.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/device_backend.h"

namespace weft::testing {

// Makes a run of "gpt" or "resnet18" with "sgd" or "adamw", in two stages. With other initial weights where
// the environment has a WEFT_TOLERANCE_SEED.
RunSpec ToleranceRun(const std::string& model, const std::string& optimizer, const std::string& folder);

struct Truth {
  Trajectory trajectory;
  Tolerance tolerance;
};
// Returns the truth, made once a process for each such run.
const Truth& TruthOf(const std::string& model, const std::string& optimizer);

// Trains by the plain loop, on the CPU for null: losses of all steps, weights after the first and the last.
Trajectory TrainPlainly(const RunSpec& run, DeviceBackend* backend);
// Trains by jobs on one rank a stage: losses, and weights after the last step.
Trajectory TrainByJobs(const RunSpec& run, Device& device);

// A distance in units of the tolerance.
struct Distance {
  Excess loss, weights;
  double ratio() const { return loss.ratio > weights.ratio ? loss.ratio : weights.ratio; }
};
Distance DistanceOf(const Trajectory& a, const Trajectory& b, const Tolerance& tolerance);
// Prints the distance on standard output, in one line.
void Print(const std::string& what, const Distance& distance);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_FLOAT32_TOLERANCE_H_
