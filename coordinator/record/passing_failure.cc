#include "coordinator/record/passing_failure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/run_files.h"

namespace weft {

bool MayPass(int error) {
  constexpr int kCauses[] = {EIO,    EREMOTEIO, ESTALE, ETIMEDOUT, ENOTCONN, ENODEV, EHOSTDOWN, EHOSTUNREACH,
                             ENOSPC, EDQUOT,    ENOMEM, EMFILE,    ENFILE,   ENOLCK, EINTR,     EAGAIN};
  return std::find(std::begin(kCauses), std::end(kCauses), error) != std::end(kCauses);
}

absl::Status CheckNoPassingFailure(const std::string& path) {
  const int file = OpenRunFile(path, O_RDONLY | O_NONBLOCK);
  char first = 0;
  const bool read = file >= 0 && pread(file, &first, 1, 0) >= 0;
  const int error = errno;
  if (file >= 0) close(file);
  if (read || !MayPass(error)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", RunFileError(error)));
}

}  // namespace weft
