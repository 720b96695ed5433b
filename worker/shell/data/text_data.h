// Reads a text as a data set: its tokens are bytes, or numbers as tokenizers' tools write them
// (token_file.h).
//
// Sample number j is the context+1 tokens at j*context: its inputs are all but the last, its targets all but
// the first. Numbers are checked against the model's vocabulary: by Open those of the first 32 Mi tokens, by
// CheckWhole all, and each again when it is read.
//
// An exported model names the fields that get the inputs, and those that get the targets. A sample is as long
// as the fields. Without targets, sample j is the `length` tokens at j*length. The vocabulary is the number
// of rows of the embedding that reads a field, where one does. Threads and failure: as data.h.
#ifndef WEFT_WORKER_SHELL_DATA_TEXT_DATA_H_
#define WEFT_WORKER_SHELL_DATA_TEXT_DATA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/data/data.h"

namespace weft {

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const TextData& data, const GptSpec& model);
// Requires fields that CheckModelAndData (run_spec.cc) takes: each is one row of int64 of one length.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokenFields(const TextData& data, const ExportedModel& model);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_TEXT_DATA_H_
