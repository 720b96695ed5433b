// Sets the state of LibTorch that belongs to the process and is for a run to decide: which kernels serve it,
// and how a GPU multiplies float32 numbers. Translates what LibTorch says when no kernel may serve an
// operation. Private to the adapter of LibTorch.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_CONTEXT_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_CONTEXT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "run/process_settings.h"
#include "run/run_spec.h"

namespace weft {

// Settings that a run holds while its ranks compute.
using PreparedRun = std::shared_ptr<const ProcessSettings>;

// Prepares LibTorch for the run's precision, kernels and model. Call it when a run begins, before its ranks
// are made and after PrepareProcess (torch_layers.h); LibTorch stays so while anybody keeps what is returned.
// FailedPrecondition where another run is being served that wants other settings. Thread-safe.
absl::StatusOr<PreparedRun> PrepareRun(const RunSpec& run);

// Turns LibTorch's exception with `message`, thrown while `what` was done, into Internal. Returns
// FailedPrecondition, naming the operation and the setting that allows it, if that has no deterministic
// kernel and the run wants such.
absl::Status TorchError(absl::string_view what, absl::string_view message);

// Returns LibTorch's version, as "2.9.1".
std::string TorchVersion();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_CONTEXT_H_
