// Reads the samples that a run trains on, by number: text, images and labels as IDX files (MNIST) or as
// CIFAR-10 (cifar10_data.h), or fields of arrays (array_data.h).
//
// text_data.h describes a text's samples. An IDX sample is one image, its pixels scaled to [0, 1] and
// flattened, channel by channel where it has several, with its label. Files are checked when they are opened,
// and as a whole by data_check.h before a training begins, so that a fault that could be known at the start
// does not end it in the middle. Threads: reads may be called from any thread. Failure: NotFound or
// InvalidArgument that names the file and says what to do; DataLoss when a file changed under the run.
#ifndef WEFT_WORKER_SHELL_DATA_DATA_H_
#define WEFT_WORKER_SHELL_DATA_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/data/augment.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// A function that is called now and then while data are checked, with the bytes that are done and all.
using ScanProgress = std::function<void(int64_t done, int64_t all)>;

class Dataset {
 public:
  virtual ~Dataset() = default;

  // Opens the run's data, checked against its model.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const RunSpec& run);

  virtual int64_t count() const = 0;  // number of samples, at least 1
  virtual DataType input_type() const = 0;
  virtual int64_t inputs() const = 0;  // elements of one sample
  // Elements of one sample, int64; 0 where the inputs hold what the model's own loss wants.
  virtual int64_t targets() const = 0;

  // Returns the shape of a sample that is an image; else zeros. Its pixels are the inputs, channel by
  // channel.
  virtual ImageShape image_shape() const { return {}; }
  // Checks the parts that Open leaves for later because they are too much for every worker to read: only a
  // large text's tokens. Failure as Open.
  virtual absl::Status CheckWhole(const ScanProgress&) const { return absl::OkStatus(); }

  // Write one sample's inputs (`inputs()` elements of `input_type()`) or targets to `out`.
  virtual absl::Status ReadInputs(int64_t sample, void* out) const = 0;
  virtual absl::Status ReadTargets(int64_t sample, int64_t* out) const = 0;

  // Read the samples that the run trains on in a whole micro-batch, one after the other: in the run's order
  // (sample_order.h), images augmented as it says (augment.h).
  absl::Status ReadInputs(const RunSpec& run, int step, int microbatch, void* out) const;
  absl::Status ReadTargets(const RunSpec& run, int step, int microbatch, int64_t* out) const;
};

// Opens the data of an exported model's fields, of all or, as its count reads, of some. Requires arrays or
// tokens.
absl::StatusOr<std::unique_ptr<Dataset>> OpenFields(const DataSpec& data, const ExportedModel& model);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_DATA_H_
