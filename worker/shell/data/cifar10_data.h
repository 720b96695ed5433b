// Reads the binary version of CIFAR-10 as a data set: records of a label and 3 x 32 x 32 pixels, channel by
// channel.
//
// Pixels are scaled to [0, 1], as those of IDX files. Threads and failure: as data.h.
#ifndef WEFT_WORKER_SHELL_DATA_CIFAR10_DATA_H_
#define WEFT_WORKER_SHELL_DATA_CIFAR10_DATA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/data/data.h"

namespace weft {

// Opens the data. `data.path` is a file of records, or the folder of the published archive: then its five
// training files, in their order.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const Cifar10Data& data, const ModelSpec& model);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_CIFAR10_DATA_H_
