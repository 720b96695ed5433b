#include "worker/shell/data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace weft {
namespace {

constexpr const char* kPathKey = "data.text.path";

absl::Status NoTokens(const std::string& path, absl::string_view form, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s is no file of tokens of %s: %s", kPathKey, path,
                                                    std::string(form), std::string(why)));
}

// Returns the number of these bytes, the low byte first.
template <int kWidth>
int64_t NumberAt(const uint8_t* bytes) {
  int64_t number = 0;
  for (int i = 0; i < kWidth; ++i) number |= int64_t{bytes[i]} << (8 * i);
  return number;
}

template <int kWidth>
void Decode(const uint8_t* bytes, int64_t n, int64_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = NumberAt<kWidth>(bytes + i * kWidth);
}

template <int kWidth>
int64_t LargestOf(const uint8_t* bytes, int64_t n) {
  int64_t largest = 0;  // no branch: the loop is bound by the memory
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, NumberAt<kWidth>(bytes + i * kWidth));
  return largest;
}

// ---- Megatron-LM's index

constexpr absl::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeader = 34;  // magic, version, type, numbers of sequences and of documents

struct MegatronIndex {
  int64_t width = 0;   // bytes of a token
  int64_t tokens = 0;  // of all sequences
};

// Returns the bytes of a token of a type that the index may name.
std::optional<int64_t> WidthOfType(uint8_t type) {
  if (type == 1) return 1;  // uint8
  if (type == 8) return 2;  // uint16
  if (type == 4) return 4;  // int32; tokens are not negative
  return std::nullopt;
}

// Returns the sum of the sequences' lengths, numbers of four bytes that begin behind the header.
absl::StatusOr<int64_t> SumOfLengths(const DataFile& index, int64_t sequences) {
  constexpr int64_t kChunk = 1 << 18;
  std::vector<uint8_t> bytes(static_cast<size_t>(kChunk * 4));
  std::vector<int64_t> lengths(kChunk);
  int64_t sum = 0;
  for (int64_t at = 0; at < sequences; at += kChunk) {
    const int64_t n = std::min(kChunk, sequences - at);
    const absl::Status s = index.Read(kIndexHeader + at * 4, static_cast<size_t>(n * 4), bytes.data());
    if (!s.ok()) return s;
    Decode<4>(bytes.data(), n, lengths.data());
    for (int64_t i = 0; i < n; ++i) sum += lengths[i];
  }
  return sum;
}

absl::StatusOr<MegatronIndex> ReadIndex(const std::string& path) {
  const auto file = DataFile::Open(path, kPathKey);
  if (!file.ok()) return file.status();
  std::array<uint8_t, kIndexHeader> header{};
  if ((*file)->bytes() < kIndexHeader) return NoTokens(path, "Megatron-LM", "its index is cut short");
  if (absl::Status s = (*file)->Read(0, header.size(), header.data()); !s.ok()) return s;
  const absl::string_view magic(reinterpret_cast<const char*>(header.data()), kIndexMagic.size());
  const int64_t version = NumberAt<8>(header.data() + 9), sequences = NumberAt<8>(header.data() + 18);
  if (magic != kIndexMagic || version != 1)
    return NoTokens(path, "Megatron-LM", "its index does not begin with MMIDIDX and version 1");
  const std::optional<int64_t> width = WidthOfType(header[17]);
  if (!width.has_value()) {
    return NoTokens(path, "Megatron-LM",
                    absl::StrCat("its tokens are of type ", int{header[17]},
                                 "; uint8 (1), int32 (4) and uint16 (8) are read"));
  }
  if (sequences < 0 || sequences > ((*file)->bytes() - kIndexHeader) / 12)
    return NoTokens(path, "Megatron-LM", "its index is cut short");
  const absl::StatusOr<int64_t> tokens = SumOfLengths(**file, sequences);
  if (!tokens.ok()) return tokens.status();
  return MegatronIndex{*width, *tokens};
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const TextData& data) {
  if (data.tokens == TextData::Tokens::kMegatron) return OpenMegatron(data.path);
  absl::StatusOr<std::unique_ptr<DataFile>> file = DataFile::Open(data.path, kPathKey);
  if (!file.ok()) return file.status();
  switch (data.tokens) {
    case TextData::Tokens::kUInt16:
      return OpenPlain(*std::move(file), 2);
    case TextData::Tokens::kUInt32:
      return OpenPlain(*std::move(file), 4);
    case TextData::Tokens::kLlmC:
      return OpenLlmC(*std::move(file));
    default:
      return OpenPlain(*std::move(file), 1);
  }
}

absl::StatusOr<TokenFile> TokenFile::OpenPlain(std::unique_ptr<DataFile> file, int64_t width) {
  const int64_t bytes = file->bytes();
  if (bytes % width == 0) return TokenFile(std::move(file), 0, bytes / width, width);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s has %d bytes, not a whole number of tokens of %d bytes; it is cut short, or it is not a "
      "file of uint%d",
      kPathKey, file->path(), bytes, width, 8 * width));
}

absl::StatusOr<TokenFile> TokenFile::OpenLlmC(std::unique_ptr<DataFile> file) {
  constexpr int64_t kHeader = 256 * 4;
  std::array<uint8_t, 12> head{};
  if (file->bytes() < kHeader) return NoTokens(file->path(), "llm.c", "it is shorter than the header");
  if (absl::Status s = file->Read(0, head.size(), head.data()); !s.ok()) return s;
  const int64_t magic = NumberAt<4>(head.data()), version = NumberAt<4>(head.data() + 4),
                count = NumberAt<4>(head.data() + 8);
  const int64_t width = magic == 20240520 && version == 1 ? 2 : magic == 20240801 && version == 7 ? 4 : 0;
  if (width == 0)
    return NoTokens(file->path(), "llm.c", absl::StrCat("it begins with ", magic, " and version ", version));
  if (file->bytes() != kHeader + count * width) {
    return NoTokens(file->path(), "llm.c",
                    absl::StrFormat("its header says %d tokens of %d bytes, and it has %d bytes behind that",
                                    count, width, file->bytes() - kHeader));
  }
  return TokenFile(std::move(file), kHeader, count, width);
}

absl::StatusOr<TokenFile> TokenFile::OpenMegatron(const std::string& path) {
  std::string prefix = path;
  for (const char* ending : {".bin", ".idx"}) {
    if (absl::EndsWith(prefix, ending)) prefix.resize(prefix.size() - 4);
  }
  const absl::StatusOr<MegatronIndex> index = ReadIndex(prefix + ".idx");
  if (!index.ok()) return index.status();
  absl::StatusOr<std::unique_ptr<DataFile>> file = DataFile::Open(prefix + ".bin", kPathKey);
  if (!file.ok()) return file.status();
  if ((*file)->bytes() != index->tokens * index->width) {
    return NoTokens((*file)->path(), "Megatron-LM",
                    absl::StrFormat("its index says %d tokens of %d bytes, and it has %d bytes",
                                    index->tokens, index->width, (*file)->bytes()));
  }
  return TokenFile(*std::move(file), 0, index->tokens, index->width);
}

absl::StatusOr<std::vector<uint8_t>> TokenFile::ReadBytes(int64_t first, int64_t n) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(n * width_));
  if (absl::Status s = file_->Read(begin_ + first * width_, bytes.size(), bytes.data()); !s.ok()) return s;
  return bytes;
}

absl::Status TokenFile::Read(int64_t first, int64_t n, int64_t* out) const {
  const absl::StatusOr<std::vector<uint8_t>> bytes = ReadBytes(first, n);
  if (!bytes.ok()) return bytes.status();
  if (width_ == 1) Decode<1>(bytes->data(), n, out);
  if (width_ == 2) Decode<2>(bytes->data(), n, out);
  if (width_ == 4) Decode<4>(bytes->data(), n, out);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TokenFile::Largest(int64_t first, int64_t n) const {
  const absl::StatusOr<std::vector<uint8_t>> bytes = ReadBytes(first, n);
  if (!bytes.ok()) return bytes.status();
  if (width_ == 1) return LargestOf<1>(bytes->data(), n);
  return width_ == 2 ? LargestOf<2>(bytes->data(), n) : LargestOf<4>(bytes->data(), n);
}

}  // namespace weft
