// Reads and writes files in the safetensors format: named tensors as 8 bytes of header length, a JSON header,
// and raw data.
//
// A file is written complete or not at all: into a neighbour with another name, synced, then renamed. A file
// is checked strictly before it is believed: a header in bounds and free of doubled names, tensors that cover
// the data without gap or overlap, sizes that agree with shapes, and data of the checksum that files of our
// own have in their metadata (`crc32`). Failure: Unavailable for errors of the disk (with the reason),
// NotFound, DataLoss for a damaged file; each names the file.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_SAFETENSORS_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;             // the format's word, as "BF16"
  std::optional<DataType> type;  // none for a type that no tensor of ours has
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes within the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // start of the data within the file
  uint64_t data_bytes = 0;
  std::string checksum;  // of the bytes before the data, as ChecksumOf gives it

  const SafetensorsEntry* Find(absl::string_view name) const;
};

struct SafetensorsSource {
  std::string name;
  DataType type = DataType::kFloat32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

absl::Status WriteSafetensors(const std::string& path, const std::vector<SafetensorsSource>& tensors,
                              const std::map<std::string, std::string>& metadata);

// Reads and checks the header, against the length of the file too.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);

// Reads the header of a file that others wrote, or may have: the message about what cannot be read calls it
// no safetensors file, and advises nobody to delete it.
absl::StatusOr<SafetensorsHeader> ReadWeightsHeader(const std::string& path);

struct SafetensorsFile {
  SafetensorsHeader header;
  std::vector<uint8_t> data;
};
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

// Reads and checks the whole file as ReadSafetensors does, with memory for a small piece of it at a time.
absl::StatusOr<SafetensorsHeader> CheckSafetensors(const std::string& path);

// Returns the CRC32 of the text as 8 hexadecimal digits.
std::string ChecksumOf(absl::string_view text);

// Reads all of a regular file of at most so many bytes.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, uint64_t most);

// Writes a small file the same way: complete or not at all.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_SAFETENSORS_H_
