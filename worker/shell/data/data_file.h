// Reads one file of training data by position; a `.gz` is unpacked into memory when it is opened.
//
// Plain files are read with pread: no page of a file that was cut short can kill the process, as a mapping
// would. Threads: Read may be called from any thread.
#ifndef WEFT_WORKER_SHELL_DATA_DATA_FILE_H_
#define WEFT_WORKER_SHELL_DATA_DATA_FILE_H_

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

class DataFile {
 public:
  // Opens a file. `key` is the place of the path in the run file, as "data.text.path": for messages.
  static absl::StatusOr<std::unique_ptr<DataFile>> Open(const std::string& path, const std::string& key);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  // Reads exactly `n` bytes at `offset`. DataLoss when the file no longer has them, or was written to since
  // it was opened: a run must not train on half of one file and half of another.
  absl::Status Read(int64_t offset, size_t n, void* out) const;

 private:
  explicit DataFile(std::string path) : path_(std::move(path)) {}
  absl::Status Unpack();
  absl::Status CheckUnchanged() const;

  const std::string path_;
  int fd_ = -1;                    // descriptor of a plain file
  timespec written_{};             // time of the last write to it
  std::vector<uint8_t> unpacked_;  // bytes of a packed file
  int64_t bytes_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_DATA_FILE_H_
