// Reads a file of tokens, in one of the forms that tools write (TextData::Tokens):
//
// bytes      each byte is a token
// uint16,    numbers of two or four bytes, the low byte first, as nanoGPT's
// uint32
// llm.c      256 numbers of four bytes (20240520, version 1, count of tokens, zeros) and tokens of two
//            bytes; or 20240801, version 7, and tokens of four bytes
// megatron   PREFIX.bin holds the tokens; PREFIX.idx begins with "MMIDIDX", says their type, and holds the
//            lengths of the sequences. The sequences, and so the documents, are read as one text
//
// Threads: Read may be called from any thread. Failure: NotFound or InvalidArgument that names the key of the
// run file and the file; DataLoss as data_file.h.
#ifndef WEFT_WORKER_SHELL_DATA_TOKEN_FILE_H_
#define WEFT_WORKER_SHELL_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/data/data_file.h"

namespace weft {

class TokenFile {
 public:
  static absl::StatusOr<TokenFile> Open(const TextData& data);

  const std::string& path() const { return file_->path(); }
  int64_t count() const { return count_; }
  // Bytes of a token.
  int64_t width() const { return width_; }
  // Returns the smallest number that is too large for a token of the file.
  int64_t limit() const { return int64_t{1} << (8 * width_); }

  // Reads tokens [first, first + n).
  absl::Status Read(int64_t first, int64_t n, int64_t* out) const;
  // Returns the largest of tokens [first, first + n), faster than Read.
  absl::StatusOr<int64_t> Largest(int64_t first, int64_t n) const;

 private:
  TokenFile(std::unique_ptr<DataFile> file, int64_t begin, int64_t count, int64_t width)
      : file_(std::move(file)), begin_(begin), count_(count), width_(width) {}

  static absl::StatusOr<TokenFile> OpenPlain(std::unique_ptr<DataFile> file, int64_t width);
  static absl::StatusOr<TokenFile> OpenLlmC(std::unique_ptr<DataFile> file);
  static absl::StatusOr<TokenFile> OpenMegatron(const std::string& path);
  absl::StatusOr<std::vector<uint8_t>> ReadBytes(int64_t first, int64_t n) const;

  std::unique_ptr<DataFile> file_;
  int64_t begin_, count_, width_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_TOKEN_FILE_H_
