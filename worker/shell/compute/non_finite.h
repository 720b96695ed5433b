// Numbers that are infinite or not a number, where a run stops for them (train.non_finite): found, and said.
//
// A loss is looked at where its forward ends, a gradient when its update has been made, by the new weights:
// no finite weight comes of a gradient that is not finite, and of a finite one it need not. So one pass finds
// both. Runs that take a norm (TrainSpec::takes_norm) find a gradient before any update, by the exact sum of
// squares. Pure.
#ifndef WEFT_WORKER_SHELL_COMPUTE_NON_FINITE_H_
#define WEFT_WORKER_SHELL_COMPUTE_NON_FINITE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/run/run_spec.h"
#include "schedules/job.h"
#include "worker/shell/compute/parameters.h"

namespace weft {

// OutOfRange for a loss that is not finite, unless the run goes on with such. Of the run's whole loss or of
// one micro-batch's.
absl::Status CheckLoss(const RunSpec& run, double loss);

// That the summed gradient, elements [begin, begin + n) of the stage's flat buffer, is not finite. Names the
// first parameter with such an element; requires that there is one.
absl::Status NonFiniteGradient(const StageLayout& layout, int64_t begin, int64_t n, const float* gradient);

// What an update made of that gradient: OutOfRange if one of the weights is not finite, by the gradient or by
// the update itself. OK where the run goes on with such.
absl::Status CheckUpdated(const RunSpec& run, const StageLayout& layout, int64_t begin, int64_t n,
                          const float* weights, const float* gradient);

// The same of what a device has reported of a job: its loss, and the norm of the gradients that it summed or
// of the weights that it made. Begins with the job.
absl::Status CheckFigures(const RunSpec& run, const Job& job, std::optional<double> loss,
                          std::optional<double> norm);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_NON_FINITE_H_
