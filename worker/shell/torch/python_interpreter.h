// Runs Python source of plug-ins in an interpreter inside of this process, so that exported models call
// operations that are written in Python (torch.library.custom_op): autograd functions of the user's own,
// Triton kernels, and whatever else torch.export does not look into.
//
// Python registers them with the same dispatcher that this process uses, so that they are operations like any
// other from then on, also for LibTorch's autograd. Rank threads call them one at a time, because of Python's
// lock. The interpreter is that of a Python which has PyTorch of the same version. Its library is loaded
// with the first source; a process whose runs name none never has it. It stays until the process ends.
//
// Private to the adapter of LibTorch. Threads: any, one call at a time. Failure: RunPythonSource.
#ifndef WEFT_WORKER_SHELL_TORCH_PYTHON_INTERPRETER_H_
#define WEFT_WORKER_SHELL_TORCH_PYTHON_INTERPRETER_H_

#include <string>

#include "absl/status/status.h"

namespace weft {

// Runs the source as a module of that file, which imports what `python`, a program, would; it is not read
// again. FailedPrecondition, with what to do, if there is no such program, its PyTorch is missing or of
// another version, or it has no library. InvalidArgument with Python's message and the line for a source that
// fails.
absl::Status RunPythonSource(const std::string& python, const std::string& file, const std::string& source);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_PYTHON_INTERPRETER_H_
