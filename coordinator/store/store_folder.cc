#include "coordinator/store/store_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/durable_file.h"

namespace weft {
namespace {

// The number, and the same with all bits turned over, which tells half a note from a whole one.
struct Note {
  uint64_t number = 0, inverse = 0;
};

absl::Status Unusable(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot keep a store in ", path, ": ", std::strerror(errno), "; give another folder"));
}

std::string FirstLineOf(int file) {
  char text[200] = "";
  const ssize_t n = pread(file, text, sizeof text - 1, 0);
  const absl::string_view line(text, n > 0 ? static_cast<size_t>(n) : 0);
  return std::string(line.substr(0, line.find('\n')));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreFolder>> StoreFolder::Open(const std::string& path,
                                                               int64_t ballast_bytes) {
  if (const auto made = MakeFolders(path); !made.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(made.status().message(), "; give another for the store"));
  }
  std::unique_ptr<StoreFolder> folder(new StoreFolder(path, ballast_bytes));
  if (absl::Status locked = folder->Lock(); !locked.ok()) return locked;
  if (absl::Status opened = folder->OpenNote(); !opened.ok()) return opened;
  struct stat ballast {};
  folder->has_ballast_ =
      stat((path + "/ballast").c_str(), &ballast) == 0 && ballast.st_size == folder->ballast_bytes_;
  return folder;
}

StoreFolder::~StoreFolder() {
  if (note_ >= 0) close(note_);
  if (lock_ >= 0) close(lock_);
}

absl::Status StoreFolder::Lock() {
  const std::string file = path_ + "/lock";
  lock_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return Unusable(file);
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Unusable(file);
    const std::string owner = FirstLineOf(lock_);
    return absl::UnavailableError(absl::StrCat("another coordinator uses the store ", path_,
                                               owner.empty() ? "" : absl::StrCat(" (", owner, ")"),
                                               "; stop it, or give this one a folder of its own"));
  }
  const std::string owner = absl::StrCat("pid ", getpid(), "\n");
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, owner.data(), owner.size(), 0) < 0) {
    // The lock holds all the same; only its owner's name is lost.
  }
  return absl::OkStatus();
}

absl::Status StoreFolder::OpenNote() {
  const std::string file = path_ + "/commits";
  note_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  return note_ < 0 ? Unusable(file) : absl::OkStatus();
}

uint64_t StoreFolder::LastCommit() const {
  Note note;
  if (pread(note_, &note, sizeof note, 0) != sizeof note || note.inverse != ~note.number) return 0;
  return note.number;
}

void StoreFolder::NoteCommit(uint64_t number) {
  const Note note{number, ~number};
  if (pwrite(note_, &note, sizeof note, 0) != sizeof note) {
    // The commit is on the disk; a damaged log would be noticed later only.
  }
}

absl::Status StoreFolder::KeepBallast() {
  if (has_ballast_ || ballast_bytes_ == 0) return absl::OkStatus();
  const std::string file = path_ + "/ballast";
  const int ballast = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  const int failure = ballast < 0 ? errno : posix_fallocate(ballast, 0, ballast_bytes_);
  if (ballast >= 0) close(ballast);
  has_ballast_ = failure == 0;
  if (has_ballast_) return absl::OkStatus();
  unlink(file.c_str());
  return absl::ResourceExhaustedError(absl::StrCat("the disk of the store ", path_, " has less than ",
                                                   ballast_bytes_ >> 20, " MiB left (",
                                                   std::strerror(failure), "): make room there"));
}

bool StoreFolder::DropBallast() {
  if (!has_ballast_) return false;
  has_ballast_ = false;
  return unlink((path_ + "/ballast").c_str()) == 0;
}

}  // namespace weft
