// Puts a tensor aside into a file without a name, until the process ends or nobody has it any more.
//
// A tensor that waits for the end of a run, and would take as much memory as weights until then, waits on the
// disk: its bytes are a mapping of the file, so the kernel keeps in memory what there is room for. The file
// has lost its name before anything is in it, so that nothing stays behind where the process ends.
//
// Threads: any. Failure: Unavailable with the folder and the reason; a full disk is one.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_UNNAMED_FILE_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_UNNAMED_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// Returns a copy of the tensor, which is in host memory, in a file in `folder`.
absl::StatusOr<Tensor> CopyToFile(const Tensor& tensor, const std::string& folder);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_UNNAMED_FILE_H_
