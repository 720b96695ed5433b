// Loads libraries of operations of the user's own (TORCH_LIBRARY), which exported models call; or Python that
// registers them (torch.library), from a file whose name ends in .py (python_interpreter.h).
//
// A library is code that runs in this process. So a process loads only what it was told to allow
// (compute/plugin_permission.h), and only a file that has the hash that the run names: the bytes that were
// hashed are the bytes that are loaded, from memory, so that the file cannot change in between. A library
// stays until the process ends, because LibTorch keeps its operations. Two versions of a library register the
// same names; a process that has loaded one refuses the other.
//
// Private to the adapter of LibTorch. Threads: any. Failure: LoadPlugins.
#ifndef WEFT_WORKER_SHELL_TORCH_PLUGINS_H_
#define WEFT_WORKER_SHELL_TORCH_PLUGINS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "run/model_spec.h"

namespace weft {

// Loads those libraries that this process does not have yet. PermissionDenied for one that it may not load;
// InvalidArgument for a file that cannot be read, has another hash, is no library or is Python that fails;
// FailedPrecondition where the process has another version of it, or no fitting Python. If the first of them
// fails, none is loaded.
absl::Status LoadPlugins(const std::vector<PluginSpec>& plugins);

// Returns true for an operation that a loaded library has registered.
bool IsOperationOfPlugin(absl::string_view name, absl::string_view overload);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_PLUGINS_H_
