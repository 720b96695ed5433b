#include "worker/shell/checkpoint/unnamed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/run_files.h"

namespace weft {

absl::StatusOr<Tensor> CopyToFile(const Tensor& tensor, const std::string& folder) {
  const auto failure = [&folder](int error) {
    return absl::UnavailableError(
        absl::StrCat("cannot put old weights aside in ", folder, ": ", RunFileError(error)));
  };
  const std::string path = absl::StrCat(folder, "/.aside-", getpid(), "-", gettid(), "-", MonotonicNow());
  const int file = OpenRunFile(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0) return failure(errno);
  const absl::Cleanup closed = [file] { close(file); };  // the mapping keeps it
  unlink(path.c_str());
  Tensor copy = tensor;
  copy.ready = nullptr;
  if (tensor.bytes == 0) return copy;
  if (const int error = posix_fallocate(file, 0, static_cast<off_t>(tensor.bytes)); error != 0)
    return failure(error);
  void* const mapped = mmap(nullptr, tensor.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return failure(errno);
  std::memcpy(mapped, tensor.data, tensor.bytes);
  copy.data = mapped;
  copy.owner = std::shared_ptr<void>(mapped, [bytes = tensor.bytes](void* begin) { munmap(begin, bytes); });
  return copy;
}

}  // namespace weft
