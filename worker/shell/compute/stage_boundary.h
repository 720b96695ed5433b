// Checks the tensors that come to a stage from other stages against its layout: one tensor [samples, ..] for
// each input, and one for each stage that reads the output.
//
// Activations and their gradients are bfloat16 where layers compute in it. Pure. Failure: InvalidArgument
// that names the stage and what was expected.
#ifndef WEFT_WORKER_SHELL_COMPUTE_STAGE_BOUNDARY_H_
#define WEFT_WORKER_SHELL_COMPUTE_STAGE_BOUNDARY_H_

#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// Checks the activations of the stages that it reads, ascending.
absl::Status CheckInputs(const RunSpec& run, const StageLayout& layout, const std::vector<Tensor>& inputs);

// Checks the gradients of the output, from the stages that read it, of which there is at least one.
absl::Status CheckOutputGradients(const RunSpec& run, const StageLayout& layout,
                                  const std::vector<Tensor>& gradients);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_STAGE_BOUNDARY_H_
