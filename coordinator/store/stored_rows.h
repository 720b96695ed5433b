// Defines the rows of an SQLite store: their table, their checksums, and the sum of these.
#ifndef WEFT_COORDINATOR_STORE_STORED_ROWS_H_
#define WEFT_COORDINATOR_STORE_STORED_ROWS_H_

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "coordinator/core/records.h"
#include "coordinator/store/row_changes.h"
#include "coordinator/store/sqlite_database.h"

namespace weft {

// The row `head`.
struct StoreHead {
  uint64_t epoch = 0, last_run = 0, commits = 0;
  uint64_t rows = 0;  // sum of the checksums of all rows, modulo 2^64
};

// Checksums of the rows of one run, so that the sum can follow when rows are replaced or removed.
struct RunSums {
  uint64_t attempt = 0, figures = 0;
  uint64_t lasting = 0;   // of its submission, and of the row that says it is written
  uint64_t progress = 0;  // of its steps and validations

  // Returns the checksum of the run's only row of a kind that replaces the one before; null for another kind.
  uint64_t* Replaced(RowKind kind) {
    return kind == RowKind::kFigures ? &figures : kind == RowKind::kAttempt ? &attempt : nullptr;
  }
  void Add(RowKind kind, uint64_t checksum);
  uint64_t all() const { return attempt + figures + lasting + progress; }
};

inline constexpr int32_t kStoreApplication = 0x57656674;  // "Weft"

// The tables of a new store.
extern const char* const kStoreSchema;

uint64_t ChecksumOf(const StoreHead& head);

struct LoadedRows {
  StoredState state;
  StoreHead head;
  std::map<uint64_t, RunSums> sums;
};
// Reads everything and checks it. DataLoss names what is wrong.
absl::StatusOr<LoadedRows> LoadRows(SqliteDatabase* database, int64_t unix_minus_monotonic_ns);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_STORED_ROWS_H_
