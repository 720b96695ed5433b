#include "coordinator/store/stored_rows.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "coordinator/store/store.h"

namespace weft {

const char* const kStoreSchema =
    "CREATE TABLE head(one INTEGER PRIMARY KEY CHECK(one = 1), epoch INTEGER NOT NULL, last_run INTEGER NOT "
    "NULL, commits INTEGER NOT NULL, rows INTEGER NOT NULL, checksum INTEGER NOT NULL) STRICT;"
    "CREATE TABLE record(run INTEGER NOT NULL, kind INTEGER NOT NULL, step INTEGER NOT NULL, body BLOB NOT "
    "NULL, checksum INTEGER NOT NULL, PRIMARY KEY(run, kind, step)) STRICT, WITHOUT ROWID;";

namespace {

absl::Status Damaged(const SqliteDatabase& database, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(database.path(), " is damaged: ", what));
}

absl::StatusOr<StoreHead> LoadHead(SqliteDatabase* database) {
  auto read = SqliteStatement::Prepare(
      database, "SELECT epoch, last_run, commits, rows, checksum FROM head WHERE one = 1");
  if (!read.ok()) return read.status();
  const absl::StatusOr<bool> row = (*read)->Step();
  if (!row.ok()) return row.status();
  if (!*row) return Damaged(*database, "its head is missing");
  const auto number = [&](int column) { return static_cast<uint64_t>((*read)->Integer(column)); };
  const StoreHead head{number(0), number(1), number(2), number(3)};
  if (ChecksumOf(head) != number(4)) return Damaged(*database, "its head has another checksum");
  return head;
}

}  // namespace

void RunSums::Add(RowKind kind, uint64_t checksum) {
  const bool is_progress = kind == RowKind::kStep || kind == RowKind::kValidation;
  uint64_t* replaced = Replaced(kind);
  (replaced != nullptr ? *replaced : is_progress ? progress : lasting) += checksum;
}

uint64_t ChecksumOf(const StoreHead& head) {
  return Fnv1a().Add(head.epoch).Add(head.last_run).Add(head.commits).Add(head.rows).hash();
}

absl::StatusOr<LoadedRows> LoadRows(SqliteDatabase* database, int64_t unix_minus_monotonic_ns) {
  LoadedRows loaded;
  absl::StatusOr<StoreHead> head = LoadHead(database);
  if (!head.ok()) return head.status();
  loaded.head = *head;
  auto read = SqliteStatement::Prepare(
      database, "SELECT run, kind, step, body, checksum FROM record ORDER BY run, kind, step");
  if (!read.ok()) return read.status();
  uint64_t sum = 0;
  while (true) {
    const absl::StatusOr<bool> row = (*read)->Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    const int64_t run = (*read)->Integer(0), kind = (*read)->Integer(1), step = (*read)->Integer(2);
    if (run <= 0 || kind < 1 || kind > kMaxRowKind || step < 0 || step > INT32_MAX)
      return Damaged(*database, "a row has an impossible key");
    const StoredRow key{static_cast<uint64_t>(run), static_cast<RowKind>(kind), static_cast<int32_t>(step)};
    const absl::string_view body = (*read)->Blob(3);
    const uint64_t checksum = ChecksumOf(key, body);
    if (checksum != static_cast<uint64_t>((*read)->Integer(4)))
      return Damaged(*database, absl::StrCat("a row of run ", key.run, " has another checksum"));
    absl::Status taken = AddRow(key, body, unix_minus_monotonic_ns, &loaded.state);
    if (!taken.ok()) return Damaged(*database, taken.message());
    sum += checksum;
    loaded.sums[key.run].Add(key.kind, checksum);
  }
  if (sum != loaded.head.rows) return Damaged(*database, "rows of it are missing");
  loaded.state.epoch = loaded.head.epoch;
  loaded.state.last_run = loaded.head.last_run;
  if (absl::Status whole = CheckStored(loaded.state); !whole.ok()) return Damaged(*database, whole.message());
  return loaded;
}

}  // namespace weft
