// Stores records in an SQLite file, in a folder of its own (store_folder.h, sqlite_database.h).
//
// One table has a row for each record, and each row a checksum over its key and its bytes. A row `head` has
// the number of commits and the sum of all checksums, so that a row that is missing, or there twice, is
// noticed too. Open checks the file's structure; Load checks every row. A damaged store is refused as a
// whole, and the message says how to restore it from a backup.
//
// Failure, beyond store.h's: Open returns Unavailable if another coordinator has the store,
// FailedPrecondition for a file of another program or of a later version, DataLoss for a damaged one.
#ifndef WEFT_COORDINATOR_STORE_SQLITE_STORE_H_
#define WEFT_COORDINATOR_STORE_SQLITE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/store.h"

namespace weft {

struct SqliteStoreOptions {
  std::string folder;
  int64_t unix_minus_monotonic_ns = 0;        // stored times are of the wall clock
  int64_t ballast_bytes = int64_t{16} << 20;  // 0 for none
  int64_t max_pages = 0;                      // of the file; 0: the disk is the bound
};

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteStoreOptions& options);

// Copies the store of a folder to a new file, which may be in use by its coordinator meanwhile. The copy is a
// store.db. AlreadyExists if the file is there; else as Open and Load.
absl::Status BackUpSqliteStore(const std::string& folder, const std::string& file);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_SQLITE_STORE_H_
