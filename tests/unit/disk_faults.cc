#include "tests/unit/disk_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft {
namespace {

DiskFaults present;

bool IsSame(int fd, const std::string& path) {
  struct stat open {
  }, named{};
  return !path.empty() && fstat(fd, &open) == 0 && stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

int Fail(int error) {
  errno = error;
  return -1;
}

int RenameAt(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if ((flags & RENAME_EXCHANGE) != 0 && present.no_exchange) return Fail(EINVAL);
  if (present.renames > 0 && present.name == to) {
    --present.renames;
    return Fail(EIO);
  }
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

}  // namespace

WithDiskFaults::WithDiskFaults(const DiskFaults& faults) { present = faults; }
WithDiskFaults::~WithDiskFaults() { present = {}; }

}  // namespace weft

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED int rename(const char* from, const char* to) noexcept {
  return weft::RenameAt(AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORTED int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                       unsigned flags) noexcept {
  return weft::RenameAt(from_folder, from, to_folder, to, flags);
}

EXPORTED int fsync(int fd) {
  if (weft::IsSame(fd, weft::present.folder)) return weft::Fail(EIO);
  return static_cast<int>(syscall(SYS_fsync, fd));
}

}  // extern "C"
