#include "worker/shell/data/text_data.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/data/token_file.h"

namespace weft {
namespace {

constexpr int64_t kCheckedAtStart = int64_t{32} << 20;  // tokens

// A model's demands on the tokens, and the words for them in messages.
struct WantedTokens {
  int64_t length = 0;      // of a sample's inputs
  bool has_next = false;   // a sample has the token behind each of its own too
  int64_t vocabulary = 0;  // tokens are below
  std::string says_length, says_short_length, says_vocabulary;
};

// The tokens of a file, cut into samples of one length, and checked against a vocabulary.
class TextSamples {
 public:
  static absl::StatusOr<TextSamples> Open(const TextData& data, WantedTokens wanted) {
    absl::StatusOr<TokenFile> file = TokenFile::Open(data);
    if (!file.ok()) return file.status();
    TextSamples samples(*std::move(file), std::move(wanted));
    if (samples.count() < 1) return samples.TooShort();
    if (absl::Status s = samples.CheckFirst(); !s.ok()) return s;
    return samples;
  }

  int64_t length() const { return wanted_.length; }
  int64_t count() const { return (file_.count() - (wanted_.has_next ? 1 : 0)) / wanted_.length; }

  // Reads the tokens of a sample, from its `skipped`th on.
  absl::Status Read(int64_t sample, int64_t skipped, int64_t* out) const {
    return ReadTokens(sample * length() + skipped, length(), out);
  }
  // Reads the tokens of a sample, and the one behind them if there is always one.
  absl::StatusOr<std::vector<int64_t>> ReadWhole(int64_t sample) const {
    std::vector<int64_t> tokens(static_cast<size_t>(length() + (wanted_.has_next ? 1 : 0)));
    absl::Status s = ReadTokens(sample * length(), static_cast<int64_t>(tokens.size()), tokens.data());
    if (!s.ok()) return s;
    return tokens;
  }

  absl::Status CheckWhole(const ScanProgress& progress) const {
    constexpr int64_t kChunk = 1 << 20;
    for (int64_t at = 0; at < file_.count() && !any_token_fits(); at += kChunk) {
      const int64_t n = std::min(kChunk, file_.count() - at);
      const absl::StatusOr<int64_t> largest = file_.Largest(at, n);
      if (!largest.ok()) return largest.status();
      if (*largest >= wanted_.vocabulary) {
        std::vector<int64_t> chunk(static_cast<size_t>(n));
        return ReadTokens(at, n, chunk.data());
      }
      progress((at + n) * file_.width(), file_.count() * file_.width());
    }
    return absl::OkStatus();
  }

 private:
  TextSamples(TokenFile file, WantedTokens wanted) : file_(std::move(file)), wanted_(std::move(wanted)) {}

  absl::Status TooShort() const {
    const std::string tokens = absl::StrFormat(" tokens of %d bytes", file_.width());
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.text.path: %s has %d bytes, a sample needs %s%d%s; use a longer text or a smaller %s",
        file_.path(), file_.count() * file_.width(),
        wanted_.has_next ? absl::StrCat(wanted_.says_short_length, " + 1 = ") : "",
        wanted_.length + (wanted_.has_next ? 1 : 0), file_.width() > 1 ? tokens : "", wanted_.says_length));
  }

  // Returns true if every token may be in the file.
  bool any_token_fits() const { return wanted_.vocabulary >= file_.limit(); }

  absl::Status ReadTokens(int64_t first, int64_t n, int64_t* out) const {
    if (absl::Status s = file_.Read(first, n, out); !s.ok()) return s;
    const bool bytes = file_.width() == 1;
    for (int64_t i = 0; i < n; ++i) {
      if (out[i] < wanted_.vocabulary) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("data.text.path: %s %d of %s is %d; %s is %d, so tokens go up to %d%s",
                          bytes ? "byte" : "token", first + i, file_.path(), out[i], wanted_.says_vocabulary,
                          wanted_.vocabulary, wanted_.vocabulary - 1, bytes ? "; 256 takes any text" : ""));
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

  TokenFile file_;
  WantedTokens wanted_;
};

// Samples of a gpt: inputs, and as targets the token behind each.
class TextDataset final : public Dataset {
 public:
  explicit TextDataset(TextSamples samples) : samples_(std::move(samples)) {}

  int64_t count() const override { return samples_.count(); }
  DataType input_type() const override { return DataType::kInt64; }
  int64_t inputs() const override { return samples_.length(); }
  int64_t targets() const override { return samples_.length(); }
  absl::Status CheckWhole(const ScanProgress& progress) const override {
    return samples_.CheckWhole(progress);
  }
  absl::Status ReadInputs(int64_t sample, void* out) const override {
    return samples_.Read(sample, 0, static_cast<int64_t*>(out));
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    return samples_.Read(sample, 1, out);
  }

 private:
  const TextSamples samples_;
};

// Samples of an exported model: each field is the tokens, or the token behind each.
class TokenFieldsDataset final : public Dataset {
 public:
  TokenFieldsDataset(TextSamples samples, const TextData& data, const ExportedModel& model)
      : samples_(std::move(samples)), sample_bytes_(model.sample_bytes) {
    for (const ExportedField& field : model.fields) {
      const bool next = std::find(data.targets.begin(), data.targets.end(), field.name) != data.targets.end();
      fields_.push_back({field.begin, next ? 1 : 0});
    }
  }

  int64_t count() const override { return samples_.count(); }
  DataType input_type() const override { return DataType::kUInt8; }
  int64_t inputs() const override { return sample_bytes_; }
  int64_t targets() const override { return 0; }
  absl::Status CheckWhole(const ScanProgress& progress) const override {
    return samples_.CheckWhole(progress);
  }
  absl::Status ReadInputs(int64_t sample, void* out) const override {
    std::memset(out, 0, static_cast<size_t>(sample_bytes_));
    const absl::StatusOr<std::vector<int64_t>> tokens = samples_.ReadWhole(sample);
    if (!tokens.ok()) return tokens.status();
    const size_t bytes = static_cast<size_t>(samples_.length()) * sizeof(int64_t);
    for (const Field& field : fields_)
      std::memcpy(static_cast<char*>(out) + field.begin, tokens->data() + field.skipped, bytes);
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t, int64_t*) const override { return absl::OkStatus(); }

 private:
  struct Field {
    int64_t begin = 0, skipped = 0;
  };

  const TextSamples samples_;
  std::vector<Field> fields_;
  const int64_t sample_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const TextData& data, const GptSpec& model) {
  absl::StatusOr<TextSamples> samples =
      TextSamples::Open(data, {model.context, /*has_next=*/true, model.vocabulary, "model.gpt.context",
                               "context", "model.gpt.vocabulary"});
  if (!samples.ok()) return samples.status();
  return std::make_unique<TextDataset>(*std::move(samples));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTokenFields(const TextData& data, const ExportedModel& model) {
  WantedTokens wanted;
  wanted.length = model.fields[0].sizes[0];
  wanted.has_next = !data.targets.empty();
  wanted.vocabulary = EmbeddingRows(model).value_or(std::numeric_limits<int64_t>::max());
  wanted.says_length = "example when the model is exported";
  wanted.says_short_length = "the example's length";
  wanted.says_vocabulary = "the number of rows of the model's embedding";
  absl::StatusOr<TextSamples> samples = TextSamples::Open(data, std::move(wanted));
  if (!samples.ok()) return samples.status();
  return std::make_unique<TokenFieldsDataset>(*std::move(samples), data, model);
}

}  // namespace weft
