#include "worker/shell/data/text_data.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "worker/shell/data/data_file.h"

namespace weft {
namespace {

constexpr int64_t kCheckedAtStart = int64_t{32} << 20;  // tokens

class TextDataset final : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const TextData& data, const GptSpec& model) {
    auto file = DataFile::Open(data.path, "data.text.path");
    if (!file.ok()) return file.status();
    const int64_t width = data.tokens == TextData::Tokens::kUInt16 ? 2 : 1;
    const int64_t bytes = (*file)->bytes();
    if (bytes % width != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data.text.path: %s has %d bytes, not a whole number of tokens of 2 bytes; it is "
                          "cut short, or it is not a file of uint16",
                          data.path, bytes));
    }
    const int64_t count = (bytes / width - 1) / model.context;
    if (count < 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.text.path: %s has %d bytes, a sample needs context + 1 = %d%s; use a longer text or "
          "a smaller model.gpt.context",
          data.path, bytes, model.context + 1, width == 2 ? " tokens of 2 bytes" : ""));
    }
    std::unique_ptr<TextDataset> dataset(new TextDataset(std::move(*file), width, model, count));
    if (absl::Status s = dataset->CheckFirst(); !s.ok()) return s;
    return dataset;
  }

  absl::Status CheckWhole(const ScanProgress& progress) const override {
    const int64_t tokens = file_->bytes() / width_;
    constexpr int64_t kChunk = 1 << 20;
    std::vector<uint8_t> bytes(static_cast<size_t>(kChunk * width_));
    for (int64_t at = 0; at < tokens && !any_token_fits(); at += kChunk) {
      const int64_t n = std::min(kChunk, tokens - at);
      if (absl::Status s = file_->Read(at * width_, static_cast<size_t>(n * width_), bytes.data()); !s.ok())
        return s;
      if (Largest(bytes.data(), n) >= vocabulary_) {
        std::vector<int64_t> chunk(static_cast<size_t>(n));
        return ReadTokens(at, n, chunk.data());
      }
      progress((at + n) * width_, file_->bytes());
    }
    return absl::OkStatus();
  }

  int64_t count() const override { return count_; }
  DataType input_type() const override { return DataType::kInt64; }
  int64_t inputs() const override { return context_; }
  int64_t targets() const override { return context_; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    return ReadTokens(sample * context_, context_, static_cast<int64_t*>(out));
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    return ReadTokens(sample * context_ + 1, context_, out);
  }

 private:
  TextDataset(std::unique_ptr<DataFile> file, int64_t width, const GptSpec& model, int64_t count)
      : file_(std::move(file)),
        width_(width),
        vocabulary_(model.vocabulary),
        context_(model.context),
        count_(count) {}

  // Returns the largest of n tokens.
  int64_t Largest(const uint8_t* bytes, int64_t n) const {
    if (width_ == 1) return *std::max_element(bytes, bytes + n);
    // The loop has no branch: it is bound by the memory.
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i)
      largest = std::max<uint32_t>(largest, bytes[2 * i] | (uint32_t{bytes[2 * i + 1]} << 8));
    return largest;
  }

  // Returns true if every token may be in the file.
  bool any_token_fits() const { return vocabulary_ >= int64_t{1} << (8 * width_); }

  absl::Status ReadTokens(int64_t first, int64_t n, int64_t* out) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(n * width_));
    if (absl::Status s = file_->Read(first * width_, bytes.size(), bytes.data()); !s.ok()) return s;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = width_ == 1 ? bytes[i] : bytes[2 * i] | (int64_t{bytes[2 * i + 1]} << 8);
      if (out[i] < vocabulary_) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.text.path: %s %d of %s is %d; model.gpt.vocabulary is %d, so tokens go up to %d%s",
          width_ == 1 ? "byte" : "token", first + i, file_->path(), out[i], vocabulary_, vocabulary_ - 1,
          width_ == 1 ? "; 256 takes any text" : ""));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFirst() const {
    if (any_token_fits()) return absl::OkStatus();
    constexpr int64_t kChunk = 1 << 18;
    std::vector<int64_t> tokens(kChunk);
    const int64_t end = std::min(file_->bytes() / width_, kCheckedAtStart);
    for (int64_t at = 0; at < end; at += kChunk) {
      if (absl::Status s = ReadTokens(at, std::min(kChunk, end - at), tokens.data()); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<DataFile> file_;
  const int64_t width_;  // bytes of a token
  const int64_t vocabulary_, context_, count_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const TextData& data, const GptSpec& model) {
  return TextDataset::Open(data, model);
}

}  // namespace weft
