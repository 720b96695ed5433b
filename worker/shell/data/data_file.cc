#include "worker/shell/data/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/run_files.h"

namespace weft {
namespace {

// The most bytes of unpacked data, which stays in memory: a bound on what a small hostile file can cost.
constexpr int64_t kMaxUnpackedBytes = int64_t{4} << 30;

}  // namespace

absl::StatusOr<std::unique_ptr<DataFile>> DataFile::Open(const std::string& path, const std::string& key) {
  std::unique_ptr<DataFile> file(new DataFile(path));
  // O_NONBLOCK: opening a pipe would wait for its other end. Regular files do not know the flag.
  file->fd_ = OpenRunFile(path, O_RDONLY | O_NONBLOCK);
  if (file->fd_ < 0) {
    const int error = errno;
    if (error == ENOENT) {
      return absl::NotFoundError(
          absl::StrFormat("%s: no file %s; every worker must see it under this path", key, path));
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: cannot open %s: %s", key, path, RunFileError(error)));
  }
  struct stat info;
  if (fstat(file->fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s is not a regular file", key, path));
  }
  file->bytes_ = info.st_size;
  file->written_ = info.st_mtim;
  if (file->bytes_ == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s is empty; fetch it again", key, path));
  }
  if (absl::EndsWith(path, ".gz")) {
    if (absl::Status status = file->Unpack(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": ", status.message()));
    }
  }
  return file;
}

DataFile::~DataFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status DataFile::Unpack() {
  gzFile packed = gzdopen(fd_, "rb");
  if (packed == nullptr) return absl::InternalError(absl::StrCat("cannot unpack ", path_));
  fd_ = -1;  // gzclose closes it
  constexpr size_t kChunk = size_t{1} << 20;
  size_t used = 0;
  absl::Status status;
  while (true) {
    unpacked_.resize(used + kChunk);
    const int n = gzread(packed, unpacked_.data() + used, kChunk);
    if (n < 0) {
      int code = 0;
      status = absl::InvalidArgumentError(
          absl::StrFormat("%s is damaged or cut short (%s); fetch it again", path_, gzerror(packed, &code)));
      break;
    }
    used += static_cast<size_t>(n);
    if (n == 0) break;
    if (static_cast<int64_t>(used) > kMaxUnpackedBytes) {
      status =
          absl::InvalidArgumentError(absl::StrFormat("%s unpacks to more than %d bytes; gunzip it and name "
                                                     "the plain file",
                                                     path_, kMaxUnpackedBytes));
      break;
    }
  }
  // gzread of a stream that ends early returns the bytes that there are; gzclose reports the error.
  if (gzclose(packed) != Z_OK && status.ok()) {
    status = absl::InvalidArgumentError(absl::StrFormat("%s is damaged or cut short; fetch it again", path_));
  }
  unpacked_.resize(used);
  bytes_ = static_cast<int64_t>(used);
  if (status.ok() && used == 0)
    status = absl::InvalidArgumentError(absl::StrCat(path_, " unpacks to nothing"));
  return status;
}

absl::Status DataFile::Read(int64_t offset, size_t n, void* out) const {
  if (fd_ < 0) {
    if (offset < 0 || static_cast<uint64_t>(offset) + n > unpacked_.size()) {
      return absl::DataLossError(absl::StrFormat("%s has no %d bytes at %d", path_, n, offset));
    }
    std::memcpy(out, unpacked_.data() + offset, n);
    return absl::OkStatus();
  }
  char* to = static_cast<char*>(out);
  while (n > 0) {
    const ssize_t got = pread(fd_, to, n, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::DataLossError(absl::StrFormat("%s: %s at byte %d; it was %d bytes long when the run began",
                                                 path_, got == 0 ? "ends" : std::strerror(errno), offset,
                                                 bytes_));
    }
    to += got;
    offset += got;
    n -= static_cast<size_t>(got);
  }
  return CheckUnchanged();
}

// Looks after a read: a write sets the time before the bytes. A file that was replaced by another of its name
// is still the one that was opened.
absl::Status DataFile::CheckUnchanged() const {
  struct stat info;
  if (fstat(fd_, &info) != 0)
    return absl::DataLossError(absl::StrCat(path_, ": cannot be looked at: ", std::strerror(errno)));
  const bool same = info.st_size == bytes_ && info.st_mtim.tv_sec == written_.tv_sec &&
                    info.st_mtim.tv_nsec == written_.tv_nsec;
  if (same) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path_,
      " was written to while the run read it; resume the run from a checkpoint with the file as it was, or "
      "begin again. Give new data a new name"));
}

}  // namespace weft
