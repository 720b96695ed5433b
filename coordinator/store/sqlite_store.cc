#include "coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/store_folder.h"
#include "coordinator/store/stored_rows.h"

namespace weft {
namespace {

// Says how to go on with a store that cannot be used any more.
absl::Status WithRemedy(const absl::Status& status, const std::string& folder) {
  if (!absl::IsDataLoss(status) && !absl::IsInternal(status)) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), ". To restore the store: move the folder ", folder,
                   " away, make it anew, and copy the last backup (weft-coordinator --backup) into it as "
                   "store.db. Without a backup, begin with an empty folder: the output folders of the runs "
                   "have their checkpoints, and weft submit --resume goes on from them"));
}

absl::Status CheckFormat(SqliteDatabase* database) {
  const absl::StatusOr<int64_t> application = database->Number("PRAGMA application_id");
  if (!application.ok()) return application.status();
  const absl::StatusOr<int64_t> version = database->Number("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*application != kStoreApplication)
    return absl::FailedPreconditionError(absl::StrCat(database->path(), " is not a store of Weft's"));
  if (*version < kOldestStoreVersion || *version > kStoreVersion)
    return UnknownFormat(database->path(), absl::StrCat(*version));
  const absl::StatusOr<std::string> whole = database->Text("PRAGMA integrity_check(1)");
  if (!whole.ok()) return whole.status();
  if (*whole == "ok") return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(database->path(), " is damaged: ", *whole));
}

// Marks a store of an older version, whose rows this one reads as they are, so that no older program opens
// it.
absl::Status MoveToThisVersion(SqliteDatabase* database) {
  const absl::StatusOr<int64_t> version = database->Number("PRAGMA user_version");
  if (!version.ok() || *version == kStoreVersion) return version.status();
  return database->Run(absl::StrCat("PRAGMA user_version=", kStoreVersion));
}

absl::Status MakeTables(SqliteDatabase* database) {
  const StoreHead head;
  absl::Status made = database->Run(absl::StrCat("BEGIN IMMEDIATE; PRAGMA application_id=", kStoreApplication,
                                                 "; PRAGMA user_version=", kStoreVersion, ";", kStoreSchema,
                                                 "INSERT INTO head VALUES(1, 0, 0, 0, 0, ",
                                                 static_cast<int64_t>(ChecksumOf(head)), "); COMMIT;"));
  if (!made.ok()) database->RollBack();
  return made;
}

class SqliteStore final : public Store {
 public:
  SqliteStore(const SqliteStoreOptions& options, std::unique_ptr<StoreFolder> folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::Status Open() {
    auto database =
        SqliteDatabase::Open(folder_->database(), SqliteDatabase::Access::kWrite, options_.max_pages);
    if (!database.ok()) return database.status();
    database_ = *std::move(database);
    const absl::StatusOr<int64_t> tables = database_->Number("SELECT count(*) FROM sqlite_schema");
    if (!tables.ok()) return tables.status();
    const absl::StatusOr<int64_t> application = database_->Number("PRAGMA application_id");
    if (!application.ok()) return application.status();
    const bool is_new = *tables == 0 && *application == 0;
    absl::Status usable = is_new ? MakeTables(database_.get()) : CheckFormat(database_.get());
    if (!is_new && usable.ok()) usable = MoveToThisVersion(database_.get());
    if (!usable.ok()) return usable;
    folder_->KeepBallast().IgnoreError();  // Room says so
    return Prepare();
  }

  absl::StatusOr<StoredState> Load() override {
    absl::StatusOr<LoadedRows> loaded = LoadRows(database_.get(), options_.unix_minus_monotonic_ns);
    if (!loaded.ok()) return WithRemedy(loaded.status(), options_.folder);
    if (const uint64_t noted = folder_->LastCommit(); loaded->head.commits < noted) {
      return WithRemedy(absl::DataLossError(absl::StrCat(
                            folder_->database(), " is damaged: its last ", noted - loaded->head.commits,
                            " commits are missing, so its write-ahead log is not whole")),
                        options_.folder);
    }
    head_ = loaded->head;
    sums_ = std::move(loaded->sums);
    return std::move(loaded->state);
  }

  absl::Status Commit(const std::vector<Records>& batch) override {
    absl::Status committed = TryCommit(batch);
    if (absl::IsResourceExhausted(committed) && folder_->DropBallast()) committed = TryCommit(batch);
    return WithRemedy(committed, options_.folder);
  }

  absl::Status Room() override { return folder_->KeepBallast(); }

 private:
  absl::Status Prepare() {
    for (const auto& [statement, sql] : std::initializer_list<std::pair<Statement*, const char*>>{
             {&insert_, "INSERT INTO record VALUES(?1, ?2, ?3, ?4, ?5)"},
             {&replace_, "INSERT OR REPLACE INTO record VALUES(?1, ?2, ?3, ?4, ?5)"},
             {&remove_progress_, "DELETE FROM record WHERE run = ?1 AND kind IN (3, 4)"},
             {&remove_, "DELETE FROM record WHERE run = ?1"},
             {&head_statement_,
              "UPDATE head SET epoch = ?1, last_run = ?2, commits = ?3, rows = ?4, checksum = ?5"}}) {
      auto prepared = SqliteStatement::Prepare(database_.get(), sql);
      if (!prepared.ok()) return prepared.status();
      *statement = *std::move(prepared);
    }
    return absl::OkStatus();
  }

  // Commits the batch, or changes nothing.
  absl::Status TryCommit(const std::vector<Records>& batch) {
    absl::Status done = database_->Run("BEGIN IMMEDIATE");
    if (done.ok()) done = Write(batch);
    if (done.ok()) done = database_->Run("COMMIT");
    if (done.ok()) {
      folder_->NoteCommit(head_.commits);
      return done;
    }
    database_->RollBack();
    absl::StatusOr<LoadedRows> before = LoadRows(database_.get(), options_.unix_minus_monotonic_ns);
    if (!before.ok()) return before.status();
    head_ = before->head;
    sums_ = std::move(before->sums);
    return done;
  }

  absl::Status Write(const std::vector<Records>& batch) {
    const RowChanges changes = ChangesOf(batch, options_.unix_minus_monotonic_ns,
                                         [this](uint64_t run) { return sums_.count(run) > 0; });
    head_.epoch = std::max(head_.epoch, changes.epoch);
    head_.last_run = std::max(head_.last_run, changes.last_run);
    for (const RowChange& change : changes.rows) {
      if (absl::Status done = Change(change); !done.ok()) return done;
    }
    ++head_.commits;
    return WriteHead();
  }

  absl::Status Change(const RowChange& change) {
    const uint64_t run = change.row.run;
    RunSums& sums = sums_[run];
    switch (change.kind) {
      case RowChange::Kind::kPut:
        return Put(change.row, change.body, &sums);
      case RowChange::Kind::kRemoveProgress:
        head_.rows -= std::exchange(sums.progress, 0);
        return Remove(*remove_progress_, run);
      case RowChange::Kind::kRemoveRun:
        head_.rows -= sums.all();
        sums_.erase(run);
        return Remove(*remove_, run);
    }
    return absl::OkStatus();
  }

  absl::Status Put(const StoredRow& row, const std::string& body, RunSums* sums) {
    const uint64_t checksum = ChecksumOf(row, body);
    uint64_t* const replaced = sums->Replaced(row.kind);
    if (replaced != nullptr) head_.rows -= std::exchange(*replaced, 0);
    sums->Add(row.kind, checksum);
    head_.rows += checksum;
    return Bind(replaced != nullptr ? *replace_ : *insert_, row, body, checksum).Run();
  }

  static absl::Status Remove(SqliteStatement& statement, uint64_t run) {
    statement.Bind(1, static_cast<int64_t>(run));
    return statement.Run();
  }

  static SqliteStatement& Bind(SqliteStatement& statement, const StoredRow& row, absl::string_view body,
                               uint64_t checksum) {
    statement.Bind(1, static_cast<int64_t>(row.run));
    statement.Bind(2, static_cast<int64_t>(row.kind));
    statement.Bind(3, row.step);
    statement.Bind(4, body);
    statement.Bind(5, static_cast<int64_t>(checksum));
    return statement;
  }

  absl::Status WriteHead() {
    int parameter = 0;
    for (const uint64_t number : {head_.epoch, head_.last_run, head_.commits, head_.rows, ChecksumOf(head_)})
      head_statement_->Bind(++parameter, static_cast<int64_t>(number));
    return head_statement_->Run();
  }

  using Statement = std::unique_ptr<SqliteStatement>;

  const SqliteStoreOptions options_;
  const std::unique_ptr<StoreFolder> folder_;
  std::unique_ptr<SqliteDatabase> database_;
  Statement insert_, replace_, remove_progress_, remove_, head_statement_;
  StoreHead head_;                    // as in the file
  std::map<uint64_t, RunSums> sums_;  // likewise
};

absl::Status CopyTo(SqliteDatabase* database, const std::string& aside, const std::string& file) {
  auto copy = SqliteStatement::Prepare(database, "VACUUM INTO ?1");
  if (!copy.ok()) return copy.status();
  (*copy)->BindText(1, aside);
  if (absl::Status copied = (*copy)->Run(); !copied.ok()) return copied;
  const int written = open(aside.c_str(), O_RDONLY | O_CLOEXEC);
  const bool durable = written >= 0 && fsync(written) == 0;
  if (written >= 0) close(written);
  if (durable && rename(aside.c_str(), file.c_str()) == 0) {
    const std::string folder = std::filesystem::path(file).parent_path().string();
    return SyncToDisk(folder.empty() ? "." : folder);
  }
  return absl::InternalError(absl::StrCat("cannot write ", file, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteStoreOptions& options) {
  absl::StatusOr<std::unique_ptr<StoreFolder>> folder =
      StoreFolder::Open(options.folder, options.ballast_bytes);
  if (!folder.ok()) return folder.status();
  auto store = std::make_unique<SqliteStore>(options, *std::move(folder));
  if (absl::Status opened = store->Open(); !opened.ok()) return WithRemedy(opened, options.folder);
  return std::unique_ptr<Store>(std::move(store));
}

absl::Status BackUpSqliteStore(const std::string& folder, const std::string& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error))
    return absl::AlreadyExistsError(absl::StrCat(file, " exists; give another name"));
  const std::string path = StoreFolder::DatabaseIn(folder);
  if (!std::filesystem::exists(path, error))
    return absl::FailedPreconditionError(absl::StrCat("there is no store in ", folder));
  auto database = SqliteDatabase::Open(path, SqliteDatabase::Access::kRead);
  if (!database.ok()) return database.status();
  if (absl::Status format = CheckFormat(database->get()); !format.ok()) return WithRemedy(format, folder);
  if (absl::Status rows = LoadRows(database->get(), 0).status(); !rows.ok()) return WithRemedy(rows, folder);
  const std::string aside = file + ".part";
  std::filesystem::remove(aside, error);
  absl::Status copied = CopyTo(database->get(), aside, file);
  std::filesystem::remove(aside, error);
  return copied;
}

}  // namespace weft
