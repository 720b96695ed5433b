// Finds numbers that are infinite or not a number, where a run stops for them (train.non_finite), and words
// the error.
//
// A loss is checked where its forward ends, a gradient when its update has been made, by the new weights: a
// gradient that is not finite makes no finite weight, and a finite gradient may also make one that is not. So
// one pass finds both. Runs that take a norm (TrainSpec::takes_norm) find a gradient before any update, by
// the exact sum of squares. A sum does not tell which micro-batch was at fault: so where a step is made again
// because of such a number, each micro-batch's gradient is checked too. Pure.
#ifndef WEFT_WORKER_SHELL_COMPUTE_NON_FINITE_H_
#define WEFT_WORKER_SHELL_COMPUTE_NON_FINITE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "schedules/job.h"
#include "worker/shell/compute/flat_math.h"
#include "worker/shell/compute/parameters.h"

namespace weft {

// Returns OutOfRange for a loss that is not finite, unless the run goes on with such. The loss is the run's
// whole one or that of one micro-batch.
absl::Status CheckLoss(const RunSpec& run, double loss);

// Returns the error that the summed gradient, elements [begin, begin + n) of the stage's flat buffer, is not
// finite. Names the first parameter with such an element; requires that there is one.
absl::Status NonFiniteGradient(const StageLayout& layout, int64_t begin, int64_t n, const float* gradient);

// Returns true for the errors of this header.
bool IsNonFinite(const absl::Status& status);

// Checks the gradient of one micro-batch, in pieces of host memory, in the step that is examined
// (RunSpec::examined_step). Else it is checked in the sum alone, which costs no pass of its own.
absl::Status CheckExamined(const RunSpec& run, const StageLayout& layout, int step,
                           const std::vector<FlatPiece>& pieces);

// Checks the weights that an update made of that gradient: OutOfRange if one is not finite, by the gradient
// or by the update itself. OK where the run goes on with such.
absl::Status CheckUpdated(const RunSpec& run, const StageLayout& layout, int64_t begin, int64_t n,
                          const float* weights, const float* gradient);

// Checks the figures that a device has reported of a job: its loss, and the norm of the gradients that it
// summed or of the weights that it made. The error begins with the job.
absl::Status CheckFigures(const RunSpec& run, const Job& job, std::optional<double> loss,
                          std::optional<double> norm);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_NON_FINITE_H_
