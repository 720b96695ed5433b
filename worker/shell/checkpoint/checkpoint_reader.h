// Reads a checkpoint folder back, whole and checked.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_READER_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_READER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "run/model_spec.h"

namespace weft {

// A checkpoint as it was read.
struct Checkpoint {
  // Number of updates that made it, as its files give it.
  std::string version;
  std::map<std::string, std::vector<float>> parameters;  // values by name, as "block0.attention.qkv.weight"
};

// Reads the whole checkpoint in `folder`, cut into any stages, and checks that it holds exactly the model's
// parameters in their sizes. NotFound where there is none, or no whole one; DataLoss for a damaged one;
// InvalidArgument for one of another model. Each names the file, and the parameter where it is about one.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const ModelSpec& model);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_READER_H_
