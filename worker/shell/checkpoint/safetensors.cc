#include "worker/shell/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/deflate.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"
#include "run/json_text.h"

namespace weft {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the format is little-endian, and written as it lies");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound
constexpr size_t kLengthBytes = 8;

struct TypeName {
  DataType type;
  const char* name;
  uint64_t bytes;
};
constexpr TypeName kTypes[] = {{DataType::kFloat32, "F32", 4},
                               {DataType::kBFloat16, "BF16", 2},
                               {DataType::kInt64, "I64", 8},
                               {DataType::kUInt8, "U8", 1}};

// Types of files that others wrote.
struct OtherType {
  const char* name;
  uint64_t bytes;
};
constexpr OtherType kOtherTypes[] = {{"F64", 8},  {"F16", 2},     {"I32", 4},    {"I16", 2},
                                     {"I8", 1},   {"U64", 8},     {"U32", 4},    {"U16", 2},
                                     {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

// Sets the type of an entry; returns the bytes of an element, or 0 for an unknown type.
uint64_t SetType(const nlohmann::json& dtype, SafetensorsEntry* entry) {
  if (!dtype.is_string()) return 0;
  entry->dtype = dtype.get<std::string>();
  for (const TypeName& own : kTypes) {
    if (entry->dtype != own.name) continue;
    entry->type = own.type;
    return own.bytes;
  }
  for (const OtherType& other : kOtherTypes) {
    if (entry->dtype == other.name) return other.bytes;
  }
  return 0;
}

const TypeName& Named(DataType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [&](const TypeName& t) { return t.type == type; });
}

// Keeps a descriptor and closes it.
class File {
 public:
  // Opens with O_NONBLOCK: opening a pipe would wait for its other end. Regular files do not know the flag.
  File(const std::string& path, int flags) : fd_(OpenRunFile(path, flags | O_NONBLOCK, 0644)) {}
  ~File() { Close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }
  bool Close() { return fd_ < 0 || close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

absl::Status Damaged(const std::string& path, absl::string_view why) {
  return absl::DataLossError(
      absl::StrFormat("%s is damaged: %s; delete it and use another checkpoint", path, std::string(why)));
}

constexpr const char* kChecksum = "crc32";

std::string ChecksumText(uint32_t checksum) { return absl::StrFormat("%08x", checksum); }

bool ReadAll(int fd, uint64_t offset, void* data, size_t n) {
  char* to = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t got = pread(fd, to, n, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<uint64_t>(got);
    n -= static_cast<size_t>(got);
  }
  return true;
}

// Says what is wrong with a file whose name and origin the caller knows.
absl::Status Unreadable(absl::string_view why) { return absl::DataLossError(why); }

// Parses the JSON of the header and refuses doubled names, which parsers otherwise resolve each in its own
// way.
absl::StatusOr<nlohmann::json> ParseHeader(const std::string& text) {
  if (absl::Status s = CheckJsonDepth(text); !s.ok())
    return Unreadable(absl::StrCat("its header ", s.message()));
  std::set<std::string> names;
  bool doubled = false;
  auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1) {
      doubled |= !names.insert(value.get<std::string>()).second;
    }
    return true;
  };
  nlohmann::json header = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) return Unreadable("its header is not a JSON object");
  if (doubled) return Unreadable("its header names a tensor twice");
  return header;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const nlohmann::json& value) {
  auto bad = [&](const char* why) { return Unreadable(absl::StrCat("tensor ", name, " ", why)); };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return bad("does not have just dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  entry.name = name;
  const nlohmann::json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  uint64_t bytes = SetType(dtype, &entry);
  if (bytes == 0) return bad("has an unknown dtype");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("has no valid data_offsets");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.end < entry.begin) return bad("ends before it begins");
  if (!shape.is_array()) return bad("has no valid shape");
  for (const nlohmann::json& size : shape) {
    if (!size.is_number_unsigned()) return bad("has no valid shape");
    const uint64_t n = size.get<uint64_t>();
    if (__builtin_mul_overflow(bytes, n, &bytes) || n > INT64_MAX) return bad("has an impossible shape");
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  if (entry.end - entry.begin != bytes) return bad("has a shape of another size than its data");
  return entry;
}

absl::StatusOr<SafetensorsHeader> ReadBareHeader(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return Unreadable("it is not a regular file");
  const uint64_t bytes = static_cast<uint64_t>(info.st_size);
  uint64_t length = 0;
  if (bytes < kLengthBytes || !ReadAll(fd, 0, &length, kLengthBytes)) return Unreadable("it has no header");
  if (length > kMaxHeaderBytes || length > bytes - kLengthBytes) {
    return Unreadable(absl::StrFormat("its header claims %d bytes of a file of %d", length, bytes));
  }
  std::string text(length, '\0');
  if (!ReadAll(fd, kLengthBytes, text.data(), text.size())) return Unreadable("its header cannot be read");
  if (text.empty() || text[0] != '{') return Unreadable("its header is not a JSON object");
  absl::StatusOr<nlohmann::json> json = ParseHeader(text);
  if (!json.ok()) return json.status();

  SafetensorsHeader header;
  header.checksum = ChecksumText(AddToCrc32(AddToCrc32(0, &length, kLengthBytes), text.data(), text.size()));
  header.data_begin = kLengthBytes + length;
  header.data_bytes = bytes - header.data_begin;
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return Unreadable("its metadata is not an object");
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string()) return Unreadable("its metadata is not text");
        header.metadata[key] = text_value.get<std::string>();
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry = ParseEntry(name, value);
    if (!entry.ok()) return entry.status();
    header.entries.push_back(*std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != at) {
      return Unreadable(absl::StrCat("there is a gap or an overlap before tensor ", entry.name));
    }
    at = entry.end;
  }
  if (at != header.data_bytes) {
    return Unreadable(absl::StrFormat("its tensors have %d bytes, its data %d", at, header.data_bytes));
  }
  return header;
}

// Reads the header of a file of a checkpoint.
absl::StatusOr<SafetensorsHeader> ReadHeader(const std::string& path, int fd) {
  absl::StatusOr<SafetensorsHeader> header = ReadBareHeader(fd);
  if (!header.ok()) return Damaged(path, header.status().message());
  return header;
}

// Returns OK if the data has the checksum that the header names, or if that names none.
absl::Status CheckData(const std::string& path, const SafetensorsHeader& header, uint32_t checksum) {
  const auto named = header.metadata.find(kChecksum);
  if (named == header.metadata.end() || named->second == ChecksumText(checksum)) return absl::OkStatus();
  return Damaged(path, "its data is not what was written: the checksum differs");
}

absl::Status OpenError(const std::string& path, int error) {
  if (error == ENOENT) return absl::NotFoundError(absl::StrFormat("no file %s", path));
  return absl::UnavailableError(absl::StrFormat("cannot open %s: %s", path, RunFileError(error)));
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::Find(absl::string_view name) const {
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// Returns length and text of a header, padded so that the data is aligned.
static std::string HeaderText(const nlohmann::json& header) {
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<SafetensorsSource>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  constexpr uint64_t kPiece = 4 << 20;  // bytes of a checksum and a write; with less, the calls cost more
  nlohmann::json header = nlohmann::json::object();
  std::vector<uint64_t> ends;
  for (const SafetensorsSource& t : tensors) {
    const uint64_t at = ends.empty() ? 0 : ends.back();
    uint64_t bytes = Named(t.type).bytes;
    for (int64_t size : t.shape) bytes *= static_cast<uint64_t>(size);
    if (header.contains(t.name)) {
      return absl::InvalidArgumentError(absl::StrFormat("%s would hold two tensors named %s", path, t.name));
    }
    header[t.name] = {{"dtype", Named(t.type).name}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}};
    ends.push_back(at + bytes);
  }
  header["__metadata__"] = metadata;
  uint32_t checksum = 0;
  // The checksum is known once the data has been written; the header has its length already.
  header["__metadata__"][kChecksum] = ChecksumText(checksum);
  DurableFile file(path);
  const std::string room = HeaderText(header);
  file.Append(room.data(), room.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = ends[i] - (i == 0 ? 0 : ends[i - 1]);
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      const uint8_t* const data = static_cast<const uint8_t*>(tensors[i].data) + at;
      const size_t piece = std::min(kPiece, bytes - at);
      checksum = AddToCrc32(checksum, data, piece);
      file.Append(data, piece);
    }
  }
  header["__metadata__"][kChecksum] = ChecksumText(checksum);
  const std::string begin = HeaderText(header);
  file.ReplaceBegin(begin.data(), begin.size());
  return file.Finish();
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path) {
  File file(path, O_RDONLY);
  if (file.get() < 0) return OpenError(path, errno);
  return ReadHeader(path, file.get());
}

absl::StatusOr<SafetensorsHeader> ReadWeightsHeader(const std::string& path) {
  File file(path, O_RDONLY);
  if (file.get() < 0) return OpenError(path, errno);
  absl::StatusOr<SafetensorsHeader> header = ReadBareHeader(file.get());
  if (header.ok()) return header;
  return absl::DataLossError(
      absl::StrFormat("%s is no whole safetensors file: %s; name one that is, or copy it again", path,
                      std::string(header.status().message())));
}

absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path) {
  File file(path, O_RDONLY);
  if (file.get() < 0) return OpenError(path, errno);
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(path, file.get());
  if (!header.ok()) return header.status();
  SafetensorsFile content{*std::move(header), {}};
  content.data.resize(content.header.data_bytes);
  if (!ReadAll(file.get(), content.header.data_begin, content.data.data(), content.data.size())) {
    return Damaged(path, "its data cannot be read");
  }
  const uint32_t checksum = AddToCrc32(0, content.data.data(), content.data.size());
  if (absl::Status data = CheckData(path, content.header, checksum); !data.ok()) return data;
  return content;
}

absl::StatusOr<SafetensorsHeader> CheckSafetensors(const std::string& path) {
  constexpr uint64_t kPiece = 1 << 20;
  File file(path, O_RDONLY);
  if (file.get() < 0) return OpenError(path, errno);
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(path, file.get());
  if (!header.ok()) return header;
  std::vector<uint8_t> piece(std::min(kPiece, header->data_bytes));
  uint32_t checksum = 0;
  for (uint64_t at = 0; at < header->data_bytes; at += kPiece) {
    const size_t bytes = std::min(kPiece, header->data_bytes - at);
    if (!ReadAll(file.get(), header->data_begin + at, piece.data(), bytes))
      return Damaged(path, "its data cannot be read");
    checksum = AddToCrc32(checksum, piece.data(), bytes);
  }
  if (absl::Status data = CheckData(path, *header, checksum); !data.ok()) return data;
  return header;
}

std::string ChecksumOf(absl::string_view text) {
  return ChecksumText(AddToCrc32(0, text.data(), text.size()));
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, uint64_t most) {
  File file(path, O_RDONLY | O_NONBLOCK);
  if (file.get() < 0) return OpenError(path, errno);
  struct stat info;
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return Damaged(path, "it is not a regular file");
  if (static_cast<uint64_t>(info.st_size) > most) return Damaged(path, "it is too large");
  std::string content(static_cast<size_t>(info.st_size), '\0');
  if (!ReadAll(file.get(), 0, content.data(), content.size())) return Damaged(path, "it cannot be read");
  return content;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  DurableFile file(path);
  file.Append(content.data(), content.size());
  return file.Finish();
}

}  // namespace weft
