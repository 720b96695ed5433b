#include "coordinator/store/sqlite_database.h"

#include <sqlite3.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr int kBusyMilliseconds = 5000;

// The settings of every connection, and of one that writes. A log of 1000 pages is carried into the file by
// the commit that fills it.
constexpr const char* kSettings =
    "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA mmap_size=0; PRAGMA foreign_keys=ON;";
constexpr const char* kWriterSettings =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=1000; "
    "PRAGMA journal_size_limit=16777216;";
constexpr const char* kReaderSettings = "PRAGMA wal_autocheckpoint=0;";

bool IsNoRoom(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

}  // namespace

absl::Status SqliteDatabase::StatusOf(int code) const {
  const int primary = code & 0xff;
  if (primary == SQLITE_OK || primary == SQLITE_ROW || primary == SQLITE_DONE) return absl::OkStatus();
  const std::string sentence = absl::StrCat(path_, ": ", sqlite3_errmsg(connection_), " (SQLite ", code, ")");
  switch (primary) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(sentence);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(sentence);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(sentence);
    case SQLITE_IOERR:
      if (IsNoRoom(sqlite3_system_errno(connection_))) return absl::ResourceExhaustedError(sentence);
      return absl::InternalError(sentence);
    default:
      return absl::InternalError(sentence);
  }
}

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path, Access access,
                                                                     int64_t max_pages) {
  const int mode =
      access == Access::kWrite ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  sqlite3* connection = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &connection,
                      mode | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE, nullptr);
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(path, connection));
  if (code != SQLITE_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " cannot be opened: ", sqlite3_errmsg(connection), " (SQLite ", code, ")"));
  }
  if (absl::Status configured = database->Configure(access, max_pages); !configured.ok()) return configured;
  return database;
}

absl::Status SqliteDatabase::Configure(Access access, int64_t max_pages) {
  sqlite3_busy_timeout(connection_, kBusyMilliseconds);
  sqlite3_db_config(connection_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  if (absl::Status set = Run(kSettings); !set.ok()) return set;
  const bool writes = access == Access::kWrite;
  if (absl::Status set = Run(writes ? kWriterSettings : kReaderSettings); !set.ok()) return set;
  if (!writes) return absl::OkStatus();
  if (max_pages > 0) {
    if (absl::Status set = Run(absl::StrCat("PRAGMA max_page_count=", max_pages)); !set.ok()) return set;
  }
  const absl::StatusOr<std::string> mode = Text("PRAGMA journal_mode");
  if (!mode.ok()) return mode.status();
  if (*mode == "wal") return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path_, ": its file system cannot share memory, which a write-ahead log needs (journal mode ", *mode,
      "); choose a folder on a local disk"));
}

SqliteDatabase::~SqliteDatabase() { sqlite3_close_v2(connection_); }

absl::Status SqliteDatabase::Run(const std::string& sql) {
  return StatusOf(sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr));
}

absl::StatusOr<int64_t> SqliteDatabase::Number(const std::string& sql) {
  absl::StatusOr<std::unique_ptr<SqliteStatement>> statement = SqliteStatement::Prepare(this, sql);
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<bool> row = (*statement)->Step();
  if (!row.ok()) return row.status();
  return *row ? (*statement)->Integer(0) : 0;
}

absl::StatusOr<std::string> SqliteDatabase::Text(const std::string& sql) {
  absl::StatusOr<std::unique_ptr<SqliteStatement>> statement = SqliteStatement::Prepare(this, sql);
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<bool> row = (*statement)->Step();
  if (!row.ok()) return row.status();
  return *row ? std::string((*statement)->Blob(0)) : std::string();
}

void SqliteDatabase::RollBack() {
  if (sqlite3_get_autocommit(connection_) != 0) return;
  Run("ROLLBACK").IgnoreError();  // what could fail is undone when the file is opened again
}

absl::StatusOr<std::unique_ptr<SqliteStatement>> SqliteStatement::Prepare(SqliteDatabase* database,
                                                                          const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database->connection_, sql.c_str(), -1, &statement, nullptr);
  if (code != SQLITE_OK) return database->StatusOf(code);
  return std::unique_ptr<SqliteStatement>(new SqliteStatement(database, statement));
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

void SqliteStatement::Bind(int parameter, int64_t value) { sqlite3_bind_int64(statement_, parameter, value); }

void SqliteStatement::Bind(int parameter, absl::string_view blob) {
  sqlite3_bind_blob64(statement_, parameter, blob.data(), blob.size(), SQLITE_STATIC);
}

void SqliteStatement::BindText(int parameter, absl::string_view text) {
  sqlite3_bind_text64(statement_, parameter, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_.StatusOf(code);
}

absl::Status SqliteStatement::Run() {
  absl::Status done = Step().status();
  Reset();
  return done;
}

void SqliteStatement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

int64_t SqliteStatement::Integer(int column) const { return sqlite3_column_int64(statement_, column); }

absl::string_view SqliteStatement::Blob(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  if (bytes == nullptr) return {};
  return {static_cast<const char*>(bytes), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

}  // namespace weft
