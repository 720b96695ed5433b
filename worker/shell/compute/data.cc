#include "worker/shell/compute/data.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "worker/shell/compute/cifar10_data.h"
#include "worker/shell/compute/data_file.h"

namespace weft {
namespace {

class TextDataset final : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const TextData& data, const GptSpec& model) {
    auto file = DataFile::Open(data.path, "data.text.path");
    if (!file.ok()) return file.status();
    const int64_t count = ((*file)->bytes() - 1) / model.context;
    if (count < 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.text.path: %s has %d bytes, a sample needs context + 1 = %d; use a longer text or "
          "a smaller model.gpt.context",
          data.path, (*file)->bytes(), model.context + 1));
    }
    std::unique_ptr<TextDataset> dataset(new TextDataset(std::move(*file), model.context, count));
    if (absl::Status s = dataset->CheckVocabulary(model.vocabulary); !s.ok()) return s;
    return dataset;
  }

  int64_t count() const override { return count_; }
  DataType input_type() const override { return DataType::kInt64; }
  int64_t inputs() const override { return context_; }
  int64_t targets() const override { return context_; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    return ReadBytes(sample * context_, static_cast<int64_t*>(out));
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    return ReadBytes(sample * context_ + 1, out);
  }

 private:
  TextDataset(std::unique_ptr<DataFile> file, int64_t context, int64_t count)
      : file_(std::move(file)), context_(context), count_(count) {}

  absl::Status ReadBytes(int64_t offset, int64_t* out) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(context_));
    if (absl::Status s = file_->Read(offset, bytes.size(), bytes.data()); !s.ok()) return s;
    for (size_t i = 0; i < bytes.size(); ++i) out[i] = bytes[i];
    return absl::OkStatus();
  }

  absl::Status CheckVocabulary(int vocabulary) const {
    if (vocabulary >= 256) return absl::OkStatus();
    constexpr int64_t kChunk = 1 << 20;
    std::vector<uint8_t> bytes(kChunk);
    for (int64_t at = 0; at < file_->bytes(); at += kChunk) {
      const size_t n = static_cast<size_t>(std::min(kChunk, file_->bytes() - at));
      if (absl::Status s = file_->Read(at, n, bytes.data()); !s.ok()) return s;
      for (size_t i = 0; i < n; ++i) {
        if (bytes[i] < vocabulary) continue;
        return absl::InvalidArgumentError(absl::StrFormat(
            "data.text.path: byte %d of %s is %d, model.gpt.vocabulary is %d; 256 takes any text",
            at + static_cast<int64_t>(i), file_->path(), bytes[i], vocabulary));
      }
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<DataFile> file_;
  const int64_t context_, count_;
};

// An IDX file's header, and the file behind it: elements of one byte in `dims` dimensions.
struct IdxFile {
  std::unique_ptr<DataFile> file;
  std::vector<int64_t> size;
  int64_t begin = 0;  // of the elements
};

absl::StatusOr<IdxFile> OpenIdx(const std::string& path, const std::string& key, int dims) {
  auto file = DataFile::Open(path, key);
  if (!file.ok()) return file.status();
  IdxFile idx{std::move(*file), {}, 4 + 4 * dims};
  std::array<uint8_t, 16> header{};
  if (idx.file->bytes() < idx.begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is cut short in its header; fetch it again", key, path));
  }
  if (absl::Status s = idx.file->Read(0, static_cast<size_t>(idx.begin), header.data()); !s.ok()) return s;
  constexpr int kUnsignedByte = 8;
  if (header[0] != 0 || header[1] != 0 || header[2] != kUnsignedByte || header[3] != dims) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s is no IDX file of bytes in %d dimensions (it begins with %02x %02x %02x %02x, not "
        "00 00 08 %02x); images have 3 dimensions, labels 1",
        key, path, dims, header[0], header[1], header[2], header[3], dims));
  }
  int64_t elements = 1;
  for (int d = 0; d < dims; ++d) {
    const uint8_t* p = header.data() + 4 + 4 * d;
    const int64_t size = (int64_t{p[0]} << 24) | (p[1] << 16) | (p[2] << 8) | p[3];
    idx.size.push_back(size);
    if (size == 0 || size > idx.file->bytes()) elements = 0;  // cannot be right, and products stay small
    elements = elements > idx.file->bytes() ? elements : elements * size;
  }
  if (elements == 0 || idx.file->bytes() != idx.begin + elements) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s has %d bytes, its header announces another number of elements; it is cut short, "
        "empty or damaged: fetch it again",
        key, path, idx.file->bytes()));
  }
  return idx;
}

absl::Status CheckShape(const std::string& path, const IdxFile& images, const std::string& model,
                        const ImageInputs& wanted) {
  const int64_t rows = images.size[1], columns = images.size[2];
  if (wanted.channels == 0 && rows * columns != wanted.features) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.idx.images: the images of %s have %d x %d = %d pixels, model.%s.inputs is %d; set it to %d",
        path, rows, columns, rows * columns, model, wanted.features, rows * columns));
  }
  if (wanted.channels > 0 && (wanted.channels != 1 || rows != wanted.size || columns != wanted.size)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data.idx.images: the images of %s are of 1 channel and %d x %d pixels, model.%s has "
                        "channels: %d and size: %d",
                        path, rows, columns, model, wanted.channels, wanted.size));
  }
  return absl::OkStatus();
}

class IdxDataset final : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const IdxData& data, const ModelSpec& model) {
    const ImageInputs wanted = ImageInputsOf(model);
    const std::string name = ModelName(model);
    absl::StatusOr<IdxFile> images = OpenIdx(data.images, "data.idx.images", 3);
    if (!images.ok()) return images.status();
    absl::StatusOr<IdxFile> labels = OpenIdx(data.labels, "data.idx.labels", 1);
    if (!labels.ok()) return labels.status();
    const int64_t count = images->size[0];
    if (labels->size[0] != count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data.idx: %s has %d images, %s has %d labels; they do not belong together",
                          data.images, count, data.labels, labels->size[0]));
    }
    const int64_t pixels = images->size[1] * images->size[2];
    if (absl::Status s = CheckShape(data.images, *images, name, wanted); !s.ok()) return s;
    std::vector<uint8_t> labels_of(static_cast<size_t>(count));
    absl::Status read = labels->file->Read(labels->begin, labels_of.size(), labels_of.data());
    if (!read.ok()) return read;
    for (size_t i = 0; i < labels_of.size(); ++i) {
      if (labels_of[i] < wanted.classes) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.idx.labels: label %d of %s is %d, model.%s.classes is %d; it must be larger than "
          "every label",
          i, data.labels, labels_of[i], name, wanted.classes));
    }
    return std::unique_ptr<Dataset>(new IdxDataset(std::move(*images), std::move(labels_of), pixels));
  }

  int64_t count() const override { return static_cast<int64_t>(labels_.size()); }
  DataType input_type() const override { return DataType::kFloat32; }
  int64_t inputs() const override { return pixels_; }
  int64_t targets() const override { return 1; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    std::vector<uint8_t> bytes(static_cast<size_t>(pixels_));
    if (absl::Status s = images_.file->Read(images_.begin + sample * pixels_, bytes.size(), bytes.data());
        !s.ok()) {
      return s;
    }
    float* pixels = static_cast<float*>(out);
    for (size_t i = 0; i < bytes.size(); ++i) pixels[i] = static_cast<float>(bytes[i]) / 255.0f;
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    *out = labels_[static_cast<size_t>(sample)];
    return absl::OkStatus();
  }

 private:
  IdxDataset(IdxFile images, std::vector<uint8_t> labels, int64_t pixels)
      : images_(std::move(images)), labels_(std::move(labels)), pixels_(pixels) {}

  const IdxFile images_;
  const std::vector<uint8_t> labels_;
  const int64_t pixels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const RunSpec& run) {
  const auto* gpt = std::get_if<GptSpec>(&run.model);
  const auto* text = std::get_if<TextData>(&run.data.source);
  if (gpt != nullptr && text != nullptr) return TextDataset::Open(*text, *gpt);
  const auto* idx = std::get_if<IdxData>(&run.data.source);
  if (gpt == nullptr && idx != nullptr) return IdxDataset::Open(*idx, run.model);
  const auto* cifar10 = std::get_if<Cifar10Data>(&run.data.source);
  if (gpt == nullptr && cifar10 != nullptr) return OpenCifar10(*cifar10, run.model);
  return absl::InvalidArgumentError(
      absl::StrCat("data: the model ", ModelName(run.model), " trains on ",
                   LearnsFromText(run.model) ? "text" : "labelled images, as `idx` or `cifar10`"));
}

int64_t SampleNumber(const TrainSpec& train, int step, int microbatch, int i, int64_t count) {
  const int64_t samples = train.batch / train.microbatches;
  return ((int64_t{step} * train.microbatches + microbatch) * samples + i) % count;
}

absl::Status Dataset::ReadInputs(const TrainSpec& train, int step, int microbatch, void* out) const {
  const int64_t stride = inputs() * (input_type() == DataType::kInt64 ? sizeof(int64_t) : sizeof(float));
  for (int i = 0; i < train.batch / train.microbatches; ++i) {
    absl::Status s =
        ReadInputs(SampleNumber(train, step, microbatch, i, count()), static_cast<char*>(out) + i * stride);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Dataset::ReadTargets(const TrainSpec& train, int step, int microbatch, int64_t* out) const {
  for (int i = 0; i < train.batch / train.microbatches; ++i) {
    absl::Status s = ReadTargets(SampleNumber(train, step, microbatch, i, count()), out + i * targets());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace weft
