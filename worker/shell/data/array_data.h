// Reads the fields of an exported model's samples from NumPy files (.npy); the first dimension counts the
// samples. A field has one file, or several, whose samples follow one another.
//
// A sample is the bytes of its fields, one after the other as the model places them (exported_model.h). A
// file may have a narrower type than its field, if the field holds each of its numbers exactly: whole numbers
// of any width or bool for int64; float16, bool or whole numbers of at most 16 bits for float32. float64,
// NumPy's default, is rounded to the nearest float32, as array.astype("float32") rounds it. Samples have no
// targets of their own: the model's loss reads fields. Threads and failure: as data.h.
#ifndef WEFT_WORKER_SHELL_DATA_ARRAY_DATA_H_
#define WEFT_WORKER_SHELL_DATA_ARRAY_DATA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/data/data.h"

namespace weft {

// Opens the files, which must have the sizes of the model's fields, and for each field the same number of
// samples.
absl::StatusOr<std::unique_ptr<Dataset>> OpenArrays(const ArraysData& data, const ExportedModel& model);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_ARRAY_DATA_H_
