// Reads the weights that a run begins with from safetensors files of another program: tensors by their names
// in the model's state_dict.
//
// The path is one file, or a folder: a checkpoint of Weft, whose names lose the stage in front; files with a
// `model.safetensors.index.json`, as transformers writes them; or one `model.safetensors`. bfloat16 and
// float16 are widened to float32, which is exact. Only headers are kept in memory. Threads: any. Failure:
// NotFound, InvalidArgument or DataLoss that names the file and the tensor.
#ifndef WEFT_WORKER_SHELL_COMPUTE_INITIAL_WEIGHTS_H_
#define WEFT_WORKER_SHELL_COMPUTE_INITIAL_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/safetensors.h"

namespace weft {

class InitialWeights {
 public:
  static absl::StatusOr<InitialWeights> Open(const std::string& path);

  // A tensor and the file that holds it.
  struct Place {
    std::string file;
    uint64_t data_begin = 0;
    SafetensorsEntry entry;
  };
  const std::map<std::string, Place>& places() const { return places_; }
  bool Has(const std::string& name) const { return places_.count(name) != 0; }

  // Copies the tensor, which must have this size, to `out` as float32.
  absl::Status Read(const std::string& name, const std::vector<int64_t>& size, float* out) const;
  // Returns OK if the tensor is there with this size, in a type that can be widened.
  absl::Status Check(const std::string& name, const std::vector<int64_t>& size) const;

 private:
  absl::Status AddFile(const std::string& file, bool of_weft);
  absl::Status AddFolder(const std::string& folder);

  std::string path_;
  std::map<std::string, Place> places_;  // by name
};

// Checks that the weights that the run begins with hold all that the model has, in its sizes, and nothing
// else; of frozen parameters all or none, which then stay those of the export. OK for a run without. The
// message begins with "weights: ".
absl::Status CheckInitialWeights(const RunSpec& run);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_INITIAL_WEIGHTS_H_
