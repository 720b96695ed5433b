// Adapts SQLite: one connection to one file, statements, and errors as statuses. The only user of its header.
//
// A connection that writes keeps a write-ahead log, and a commit returns when the log is on the disk. One
// connection alone may write, because SQLite before 3.51.3 may lose a log that two connections reset; others
// read, for backups. Memory mapping is off, so that a page that cannot be read is an error and no signal.
//
// Threads: one at a time. Failure: ResourceExhausted (no room on the disk; a transaction has been rolled
// back), Unavailable (another program holds the file), DataLoss (the file is damaged, or none of SQLite's),
// Internal (reading or writing failed); each names the file.
#ifndef WEFT_COORDINATOR_STORE_SQLITE_DATABASE_H_
#define WEFT_COORDINATOR_STORE_SQLITE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace weft {

class SqliteDatabase {
 public:
  enum class Access { kWrite, kRead };

  // Opens the file; makes it, to write, if it is not there. `max_pages` bounds its size; 0: the disk does.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path, Access access,
                                                              int64_t max_pages = 0);
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  // Runs statements that return nothing.
  absl::Status Run(const std::string& sql);
  // Returns the first column of the only row.
  absl::StatusOr<int64_t> Number(const std::string& sql);
  absl::StatusOr<std::string> Text(const std::string& sql);
  // Rolls back if a transaction is open.
  void RollBack();

  const std::string& path() const { return path_; }

 private:
  friend class SqliteStatement;
  SqliteDatabase(std::string path, sqlite3* connection) : path_(std::move(path)), connection_(connection) {}
  absl::Status Configure(Access access, int64_t max_pages);
  absl::Status StatusOf(int code) const;

  const std::string path_;
  sqlite3* const connection_;
};

// A prepared statement; the database outlives it. Parameters and columns count from 1 and 0, as SQLite does.
class SqliteStatement {
 public:
  static absl::StatusOr<std::unique_ptr<SqliteStatement>> Prepare(SqliteDatabase* database,
                                                                  const std::string& sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  void Bind(int parameter, int64_t value);
  void Bind(int parameter, absl::string_view blob);      // which stays until Reset
  void BindText(int parameter, absl::string_view text);  // likewise
  // Returns true if there is a row.
  absl::StatusOr<bool> Step();
  // Runs a statement that returns nothing, and resets it.
  absl::Status Run();
  void Reset();
  int64_t Integer(int column) const;
  absl::string_view Blob(int column) const;  // until the next Step

 private:
  SqliteStatement(SqliteDatabase* database, sqlite3_stmt* statement)
      : database_(*database), statement_(statement) {}

  SqliteDatabase& database_;
  sqlite3_stmt* const statement_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_SQLITE_DATABASE_H_
