// Manages the folder of a store: its lock, a note of the last commit, and room on the disk for the last
// writes.
//
//   lock      one coordinator at a time owns the folder, by a lock on this file, which the kernel releases
//             when the process ends in whatever way
//   commits   the number of the last commit, written behind it and not forced to the disk. A store that has
//             fewer lost some: its write-ahead log is damaged, which SQLite takes for the end of the log
//   ballast   bytes that are given back when the disk is full, so that what runs already can be stored; until
//             it is there again, no new run is taken in
//
// Threads: one at a time. Failure: Unavailable if another process owns the folder, FailedPrecondition for a
// folder that cannot be used, each with what to do.
#ifndef WEFT_COORDINATOR_STORE_STORE_FOLDER_H_
#define WEFT_COORDINATOR_STORE_STORE_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

class StoreFolder {
 public:
  // Makes the folder if it is not there, and takes the lock.
  static absl::StatusOr<std::unique_ptr<StoreFolder>> Open(const std::string& path, int64_t ballast_bytes);
  ~StoreFolder();
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  const std::string& path() const { return path_; }
  // Returns the path of the database in a store's folder.
  static std::string DatabaseIn(const std::string& path) { return path + "/store.db"; }
  std::string database() const { return DatabaseIn(path_); }

  // Returns the number of the last commit that was noted; 0 if none was, or the note cannot be read.
  uint64_t LastCommit() const;
  void NoteCommit(uint64_t number);

  // Makes the ballast if it is not there. ResourceExhausted if the disk has no room for it.
  absl::Status KeepBallast();
  // Gives the ballast's room back. Returns false if there was none.
  bool DropBallast();

 private:
  StoreFolder(std::string path, int64_t ballast_bytes)
      : path_(std::move(path)), ballast_bytes_(ballast_bytes) {}
  absl::Status Lock();
  absl::Status OpenNote();

  const std::string path_;
  const int64_t ballast_bytes_;
  int lock_ = -1, note_ = -1;
  bool has_ballast_ = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_STORE_FOLDER_H_
