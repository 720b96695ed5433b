#include "worker/shell/data/cifar10_data.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/data/data_file.h"
#include "worker/shell/data/resized_images.h"

namespace weft {
namespace {

constexpr int64_t kSide = 32, kChannels = 3, kPixels = kChannels * kSide * kSide;
constexpr int64_t kRecord = 1 + kPixels;
constexpr char kKey[] = "data.cifar10.path";

class Cifar10Dataset final : public Dataset {
 public:
  // Appends a file's records.
  absl::Status Append(const std::string& path, const std::string& model, int classes) {
    auto file = DataFile::Open(path, kKey);
    if (!file.ok()) return file.status();
    if ((*file)->bytes() % kRecord != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s has %d bytes, not a multiple of a record's %d bytes; it is cut short, or "
                          "it is not CIFAR-10's binary version",
                          kKey, path, (*file)->bytes(), kRecord));
    }
    const int64_t records = (*file)->bytes() / kRecord;
    std::vector<uint8_t> record(kRecord);
    for (int64_t i = 0; i < records; ++i) {
      if (absl::Status s = (*file)->Read(i * kRecord, 1, record.data()); !s.ok()) return s;
      if (record[0] >= classes) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: label %d of %s is %d, model.%s.classes is %d; it must be larger than every label", kKey, i,
            path, record[0], model, classes));
      }
      labels_.push_back(record[0]);
    }
    ends_.push_back(count());
    files_.push_back(*std::move(file));
    return absl::OkStatus();
  }

  int64_t count() const override { return static_cast<int64_t>(labels_.size()); }
  DataType input_type() const override { return DataType::kFloat32; }
  int64_t inputs() const override { return kPixels; }
  int64_t targets() const override { return 1; }
  ImageShape image_shape() const override { return {kChannels, kSide, kSide}; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), sample);
    const auto number = static_cast<size_t>(end - ends_.begin());
    const int64_t within = sample - (number == 0 ? 0 : ends_[number - 1]);
    std::vector<uint8_t> bytes(kPixels);
    absl::Status read = files_[number]->Read(within * kRecord + 1, bytes.size(), bytes.data());
    if (!read.ok()) return read;
    float* const pixels = static_cast<float*>(out);
    for (size_t i = 0; i < bytes.size(); ++i) pixels[i] = static_cast<float>(bytes[i]) / 255.0f;
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    *out = labels_[static_cast<size_t>(sample)];
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<DataFile>> files_;
  std::vector<int64_t> ends_;  // number of samples up to the end of each file
  std::vector<uint8_t> labels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const Cifar10Data& data, const ModelSpec& model) {
  const ImageInputs wanted = ImageInputsOf(model);
  const std::string name = ModelName(model);
  const bool fits =
      data.resize ? wanted.channels == kChannels
                  : wanted.features == kPixels &&
                        (wanted.channels == 0 || (wanted.channels == kChannels && wanted.size == kSide));
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.cifar10: its images are of 3 channels and 32 x 32 pixels, %d numbers; model.%s takes %d%s",
        kPixels, name, wanted.features,
        wanted.channels == kChannels ? "; resize: true reads them in its size" : ""));
  }
  std::vector<std::string> paths = {data.path};
  std::error_code error;
  if (std::filesystem::is_directory(data.path, error)) {
    paths.clear();
    for (int i = 1; i <= 5; ++i) paths.push_back(absl::StrCat(data.path, "/data_batch_", i, ".bin"));
  }
  auto dataset = std::make_unique<Cifar10Dataset>();
  for (const std::string& path : paths) {
    if (absl::Status s = dataset->Append(path, name, wanted.classes); !s.ok()) return s;
  }
  if (!data.resize) return dataset;
  return Resized(std::move(dataset), kChannels, kSide, wanted.size);
}

}  // namespace weft
