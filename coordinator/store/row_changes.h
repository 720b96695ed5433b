// Turns records into rows of a store, and rows into what is stored, for each store that keeps rows on a disk.
//
// A run has one row of each lasting kind (its submission, its attempt, its figures, the mark that its folder
// is written) and one for each step and validation. Pure. Failure: DataLoss for a row that cannot be read.
#ifndef WEFT_COORDINATOR_STORE_ROW_CHANGES_H_
#define WEFT_COORDINATOR_STORE_ROW_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/records.h"

namespace weft {

enum class RowKind : uint8_t {
  kSubmission = 1,
  kFigures = 2,
  kStep = 3,
  kValidation = 4,
  kWritten = 5,
  kAttempt = 6
};
constexpr int kMaxRowKind = 6;

struct StoredRow {
  uint64_t run = 0;
  RowKind kind = RowKind::kSubmission;
  int32_t step = 0;  // of steps and validations
};

uint64_t ChecksumOf(const StoredRow& row, absl::string_view bytes);

struct RowChange {
  enum class Kind : uint8_t { kPut, kRemoveProgress, kRemoveRun };  // progress: steps and validations
  Kind kind = Kind::kPut;
  StoredRow row;        // with kRemoveProgress and kRemoveRun its run counts
  std::string body;     // of kPut
  bool joined = false;  // true if it is stored together with the change behind it, or not at all
};

// The changes that a batch of records makes. A store that has carried out only the first of them, and no half
// of joined ones, still keeps the invariants of records.h: no batch has steps of a run that it submits,
// because nothing is said of a run before its submission is stored.
struct RowChanges {
  uint64_t epoch = 0, last_run = 0;  // the largest of the batch; 0 for none
  std::vector<RowChange> rows;
  std::vector<uint64_t> submitted, forgotten;  // runs that have rows from now on, and no more
};

// `has_rows` says which runs have rows before the batch: records of others change nothing. No two changes
// touch the same row. Figures and attempts of more than `most_bytes` leave out the reports of the ranks,
// which grow with their number.
RowChanges ChangesOf(const std::vector<Records>& batch, int64_t unix_minus_monotonic_ns,
                     const std::function<bool(uint64_t run)>& has_rows, size_t most_bytes = SIZE_MAX);

// Adds a row to what is stored. Rows of a run come in the order of their keys.
absl::Status AddRow(const StoredRow& row, absl::string_view body, int64_t unix_minus_monotonic_ns,
                    StoredState* state);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_ROW_CHANGES_H_
