// What of LibTorch's state belongs to the process and is for a run to decide: which kernels may serve it, and
// how a GPU multiplies float32 numbers; and what LibTorch says when a kernel may not. Private to the adapter
// of LibTorch.
#ifndef WEFT_WORKER_SHELL_COMPUTE_TORCH_CONTEXT_H_
#define WEFT_WORKER_SHELL_COMPUTE_TORCH_CONTEXT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/run/precision.h"

namespace weft {

// When a run begins, before its ranks are made; those of one process are of one run at a time. PrepareProcess
// (torch_layers.h) comes before.
void PrepareRun(Precision precision, Kernels kernels);

// LibTorch's exception with `message`, thrown while `what` was done: Internal. FailedPrecondition, naming the
// operation and what allows it, if that has no deterministic kernel and the run wants such.
absl::Status TorchError(absl::string_view what, absl::string_view message);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_TORCH_CONTEXT_H_
