#include "worker/shell/data/text_data.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "worker/shell/data/token_file.h"

namespace weft {
namespace {

constexpr int64_t kCheckedAtStart = int64_t{32} << 20;  // tokens

class TextDataset final : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const TextData& data, const GptSpec& model) {
    absl::StatusOr<TokenFile> file = TokenFile::Open(data);
    if (!file.ok()) return file.status();
    const int64_t count = (file->count() - 1) / model.context;
    if (count < 1) {
      const std::string tokens = absl::StrFormat(" tokens of %d bytes", file->width());
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.text.path: %s has %d bytes, a sample needs context + 1 = %d%s; use a longer text or a "
          "smaller "
          "model.gpt.context",
          file->path(), file->count() * file->width(), model.context + 1, file->width() > 1 ? tokens : ""));
    }
    std::unique_ptr<TextDataset> dataset(new TextDataset(*std::move(file), model, count));
    if (absl::Status s = dataset->CheckFirst(); !s.ok()) return s;
    return dataset;
  }

  absl::Status CheckWhole(const ScanProgress& progress) const override {
    constexpr int64_t kChunk = 1 << 20;
    for (int64_t at = 0; at < file_.count() && !any_token_fits(); at += kChunk) {
      const int64_t n = std::min(kChunk, file_.count() - at);
      const absl::StatusOr<int64_t> largest = file_.Largest(at, n);
      if (!largest.ok()) return largest.status();
      if (*largest >= vocabulary_) {
        std::vector<int64_t> chunk(static_cast<size_t>(n));
        return ReadTokens(at, n, chunk.data());
      }
      progress((at + n) * file_.width(), file_.count() * file_.width());
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
  TextDataset(TokenFile file, const GptSpec& model, int64_t count)
      : file_(std::move(file)), vocabulary_(model.vocabulary), context_(model.context), count_(count) {}

  // Returns true if every token may be in the file.
  bool any_token_fits() const { return vocabulary_ >= file_.limit(); }

  absl::Status ReadTokens(int64_t first, int64_t n, int64_t* out) const {
    if (absl::Status s = file_.Read(first, n, out); !s.ok()) return s;
    const bool bytes = file_.width() == 1;
    for (int64_t i = 0; i < n; ++i) {
      if (out[i] < vocabulary_) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.text.path: %s %d of %s is %d; model.gpt.vocabulary is %d, so tokens go up to %d%s",
          bytes ? "byte" : "token", first + i, file_.path(), out[i], vocabulary_, vocabulary_ - 1,
          bytes ? "; 256 takes any text" : ""));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFirst() const {
    if (any_token_fits()) return absl::OkStatus();
    constexpr int64_t kChunk = 1 << 18;
    std::vector<int64_t> tokens(kChunk);
    const int64_t end = std::min(file_.count(), kCheckedAtStart);
    for (int64_t at = 0; at < end; at += kChunk) {
      if (absl::Status s = ReadTokens(at, std::min(kChunk, end - at), tokens.data()); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  const TokenFile file_;
  const int64_t vocabulary_, context_, count_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const TextData& data, const GptSpec& model) {
  return TextDataset::Open(data, model);
}

}  // namespace weft
