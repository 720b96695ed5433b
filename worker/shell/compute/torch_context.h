// Sets the state of LibTorch that belongs to the process and is for a run to decide: which kernels may serve
// it, and how a GPU multiplies float32 numbers. Words LibTorch's error when a kernel may not serve. Private
// to the adapter of LibTorch.
#ifndef WEFT_WORKER_SHELL_COMPUTE_TORCH_CONTEXT_H_
#define WEFT_WORKER_SHELL_COMPUTE_TORCH_CONTEXT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/run/precision.h"

namespace weft {

// Prepares the process when a run begins, before its ranks are made; those of one process are of one run at a
// time. PrepareProcess (torch_layers.h) comes before.
void PrepareRun(Precision precision, Kernels kernels);

// Turns LibTorch's exception with `message`, thrown while `what` was done, into Internal. Returns
// FailedPrecondition, naming the operation and the setting that allows it, if that has no deterministic
// kernel and the run wants such.
absl::Status TorchError(absl::string_view what, absl::string_view message);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_TORCH_CONTEXT_H_
