#include "worker/shell/data/data.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/data/array_data.h"
#include "worker/shell/data/cifar10_data.h"
#include "worker/shell/data/data_file.h"
#include "worker/shell/data/resized_images.h"
#include "worker/shell/data/sample_order.h"
#include "worker/shell/data/text_data.h"

namespace weft {
namespace {

// An IDX file's header, and the file behind it: elements of one byte in `dims` dimensions.
struct IdxFile {
  std::unique_ptr<DataFile> file;
  std::vector<int64_t> size;
  int64_t begin = 0;  // start of the elements
};

// Opens a file with `dims` dimensions, or, where the file says so, with `more`.
absl::StatusOr<IdxFile> OpenIdx(const std::string& path, const std::string& key, int dims, int more) {
  auto file = DataFile::Open(path, key);
  if (!file.ok()) return file.status();
  std::array<uint8_t, 20> header{};
  if ((*file)->bytes() >= 4) {
    if (absl::Status s = (*file)->Read(0, 4, header.data()); !s.ok()) return s;
  }
  if (header[3] == more) dims = more;
  IdxFile idx{std::move(*file), {}, 4 + 4 * dims};
  if (idx.file->bytes() < idx.begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is cut short in its header; fetch it again", key, path));
  }
  if (absl::Status s = idx.file->Read(0, static_cast<size_t>(idx.begin), header.data()); !s.ok()) return s;
  constexpr int kUnsignedByte = 8;
  if (header[0] != 0 || header[1] != 0 || header[2] != kUnsignedByte || header[3] != dims) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s is not an IDX file of bytes in %d dimensions (it begins with %02x %02x %02x %02x, not "
        "00 00 08 %02x); images have 3 dimensions, or 4 with channels, labels 1",
        key, path, dims, header[0], header[1], header[2], header[3], dims));
  }
  int64_t elements = 1;
  for (int d = 0; d < dims; ++d) {
    const uint8_t* p = header.data() + 4 + 4 * d;
    const int64_t size = (int64_t{p[0]} << 24) | (p[1] << 16) | (p[2] << 8) | p[3];
    idx.size.push_back(size);
    // Such a size cannot be right, and products stay small.
    if (size == 0 || size > idx.file->bytes()) elements = 0;
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

// Returns the shape of images of size [count, rows, columns] or [count, channels, rows, columns].
ImageShape ShapeOf(const std::vector<int64_t>& size) {
  return {size.size() == 4 ? size[1] : 1, size[size.size() - 2], size.back()};
}

absl::Status CheckShape(const IdxData& data, const ImageShape& images, const std::string& model,
                        const ImageInputs& wanted) {
  if (wanted.channels == 0) {
    if (data.resize) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.idx.resize: model.%s takes numbers of any shape, so there is no image size to resize to",
          model));
    }
    if (images.pixels() == wanted.features) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.idx.images: the images of %s have %d x %d = %d pixels, model.%s.inputs is %d; set it to %d",
        data.images, images.rows, images.columns, images.pixels(), model, wanted.features, images.pixels()));
  }
  const bool sized = data.resize ? images.rows == images.columns
                                 : images.rows == wanted.size && images.columns == wanted.size;
  if (wanted.channels == images.channels && sized) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "data.idx.images: the images of %s are of %d channel%s and %d x %d pixels, model.%s has "
      "channels: %d and size: %d%s",
      data.images, images.channels, images.channels == 1 ? "" : "s", images.rows, images.columns, model,
      wanted.channels, wanted.size,
      data.resize ? "; only square images can be resized" : "; resize: true reads them in its size"));
}

class IdxDataset final : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const IdxData& data, const ModelSpec& model) {
    const ImageInputs wanted = ImageInputsOf(model);
    const std::string name = ModelName(model);
    absl::StatusOr<IdxFile> images = OpenIdx(data.images, "data.idx.images", 3, 4);
    if (!images.ok()) return images.status();
    absl::StatusOr<IdxFile> labels = OpenIdx(data.labels, "data.idx.labels", 1, 1);
    if (!labels.ok()) return labels.status();
    const int64_t count = images->size[0];
    if (labels->size[0] != count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data.idx: %s has %d images, %s has %d labels; they do not belong together",
                          data.images, count, data.labels, labels->size[0]));
    }
    const ImageShape shape = ShapeOf(images->size);
    if (absl::Status s = CheckShape(data, shape, name, wanted); !s.ok()) return s;
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
    std::unique_ptr<Dataset> dataset(new IdxDataset(std::move(*images), std::move(labels_of), shape));
    if (!data.resize) return dataset;
    return Resized(std::move(dataset), wanted.channels, static_cast<int>(shape.rows), wanted.size);
  }

  int64_t count() const override { return static_cast<int64_t>(labels_.size()); }
  DataType input_type() const override { return DataType::kFloat32; }
  int64_t inputs() const override { return shape_.pixels(); }
  int64_t targets() const override { return 1; }
  ImageShape image_shape() const override { return shape_; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    std::vector<uint8_t> bytes(static_cast<size_t>(shape_.pixels()));
    const int64_t begin = images_.begin + sample * shape_.pixels();
    if (absl::Status s = images_.file->Read(begin, bytes.size(), bytes.data()); !s.ok()) return s;
    float* pixels = static_cast<float*>(out);
    for (size_t i = 0; i < bytes.size(); ++i) pixels[i] = static_cast<float>(bytes[i]) / 255.0f;
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    *out = labels_[static_cast<size_t>(sample)];
    return absl::OkStatus();
  }

 private:
  IdxDataset(IdxFile images, std::vector<uint8_t> labels, const ImageShape& shape)
      : images_(std::move(images)), labels_(std::move(labels)), shape_(shape) {}

  const IdxFile images_;
  const std::vector<uint8_t> labels_;
  const ImageShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenFields(const DataSpec& data, const ExportedModel& model) {
  if (const auto* text = std::get_if<TextData>(&data.source)) return OpenTokenFields(*text, model);
  return OpenArrays(std::get<ArraysData>(data.source), model);
}

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const RunSpec& run) {
  const auto* exported = std::get_if<ExportedSpec>(&run.model);
  const auto* arrays = std::get_if<ArraysData>(&run.data.source);
  const auto* gpt = std::get_if<GptSpec>(&run.model);
  const auto* text = std::get_if<TextData>(&run.data.source);
  if (gpt != nullptr && text != nullptr) return OpenText(*text, *gpt);
  if (exported != nullptr && (text != nullptr || arrays != nullptr))
    return OpenFields(run.data, *exported->model);
  const auto* idx = std::get_if<IdxData>(&run.data.source);
  if (gpt == nullptr && idx != nullptr) return IdxDataset::Open(*idx, run.model);
  const auto* cifar10 = std::get_if<Cifar10Data>(&run.data.source);
  if (gpt == nullptr && cifar10 != nullptr) return OpenCifar10(*cifar10, run.model);
  return absl::InvalidArgumentError(
      absl::StrCat("data: the model ", ModelName(run.model), " trains on ",
                   LearnsFromText(run.model) ? "text" : "labelled images, as `idx` or `cifar10`"));
}

absl::Status Dataset::ReadInputs(const RunSpec& run, int step, int microbatch, void* out) const {
  const int64_t stride = inputs() * static_cast<int64_t>(ElementBytes(input_type()));
  for (int i = 0; i < run.microbatch_samples(); ++i) {
    const Sample sample = SampleOf(run, step, microbatch, i, count());
    char* const place = static_cast<char*>(out) + i * stride;
    if (absl::Status s = ReadInputs(sample.number, place); !s.ok()) return s;
    if (!run.data.augment.any()) continue;
    Augment(run.data.augment, run.train.seed, sample, image_shape(), reinterpret_cast<float*>(place));
  }
  return absl::OkStatus();
}

absl::Status Dataset::ReadTargets(const RunSpec& run, int step, int microbatch, int64_t* out) const {
  for (int i = 0; i < run.microbatch_samples(); ++i) {
    const Sample sample = SampleOf(run, step, microbatch, i, count());
    if (absl::Status s = ReadTargets(sample.number, out + i * targets()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace weft
