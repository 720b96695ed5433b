#include "client/training/scratch_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The most characters of the folder: a unix socket's path has room for 107.
constexpr size_t kMaxFolderLength = 80;
constexpr char kPrefix[] = "weft-";
constexpr size_t kRandom = 6;
constexpr char kOwner[] = "owner.lock";  // locked as long as the process that made the folder lives

// Opens and locks the folder's lock file; returns -1 if another process has it, or it is not there.
int LockOwner(const std::string& folder, int flags) {
  const int file =
      open(absl::StrCat(folder, "/", kOwner).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
  if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  if (file >= 0) close(file);
  return -1;
}

// Removes folders of dead processes of this user, which a signal or a crash kept from removing them.
void Sweep(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    struct stat info {};
    if (name.rfind(kPrefix, 0) != 0 || name.size() != sizeof kPrefix - 1 + kRandom) continue;
    if (lstat(entry->path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid())
      continue;
    // A folder without the file is not ours, or has just been made.
    const int owner = LockOwner(entry->path().string(), 0);
    if (owner < 0) continue;
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
    close(owner);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScratchFolder>> ScratchFolder::Make() {
  std::error_code error;
  std::string parent = std::filesystem::temp_directory_path(error).string();
  if (error || parent.size() > kMaxFolderLength) parent = "/tmp";
  Sweep(parent);
  std::string path = absl::StrCat(parent, "/", kPrefix, std::string(kRandom, 'X'));
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder in ", parent, ": ", std::strerror(errno),
                                               "; set TMPDIR to a writable one"));
  }
  const int owner = LockOwner(path, O_CREAT);
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path), owner));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (owner_ >= 0) close(owner_);
}

}  // namespace weft
