// Reads what a run recorded of its jobs: hashes.jsonl of its output folder (docs/guide/outputs.md).
#ifndef WEFT_CLIENT_DIFF_HASH_FILE_H_
#define WEFT_CLIENT_DIFF_HASH_FILE_H_

#include <cstddef>
#include <istream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/diff/recorded_hashes.h"
#include "run/run_spec.h"

namespace weft {

struct HashFile {
  RunSpec run;  // the last one that wrote into the file
  RecordedHashes hashes;
  size_t damaged_lines = 0;  // that were passed over; a crash may leave half a line
};

// Parses one line about a job. InvalidArgument for another one.
absl::StatusOr<JobHashes> ParseHashLine(absl::string_view line);

// Parses the file. A run that went on in the folder replaces the steps that it made again. InvalidArgument if
// there is no run in it.
absl::StatusOr<HashFile> ParseHashes(std::istream& lines);

// Reads the file in a run's output folder. NotFound if there is none.
absl::StatusOr<HashFile> ReadHashes(const std::string& folder);

}  // namespace weft

#endif  // WEFT_CLIENT_DIFF_HASH_FILE_H_
