#include "worker/shell/data/resized_images.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weft {
namespace {

class ResizedImages final : public Dataset {
 public:
  ResizedImages(std::unique_ptr<Dataset> images, int channels, int from, int to)
      : images_(std::move(images)), channels_(channels), from_(from), to_(to) {
    for (int64_t i = 0; i < to; ++i) nearest_.push_back((2 * i + 1) * from / (2 * to));
  }

  int64_t count() const override { return images_->count(); }
  DataType input_type() const override { return DataType::kFloat32; }
  int64_t inputs() const override { return channels_ * to_ * to_; }
  int64_t targets() const override { return images_->targets(); }
  ImageShape image_shape() const override { return {channels_, to_, to_}; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    std::vector<float> image(static_cast<size_t>(channels_ * from_ * from_));
    if (absl::Status s = images_->ReadInputs(sample, image.data()); !s.ok()) return s;
    auto* to = static_cast<float*>(out);
    for (int64_t c = 0; c < channels_; ++c) {
      for (int64_t y = 0; y < to_; ++y, to += to_) {
        if (y > 0 && nearest_[y] == nearest_[y - 1]) {
          std::copy_n(to - to_, to_, to);
          continue;
        }
        const float* row = image.data() + (c * from_ + nearest_[y]) * from_;
        for (int64_t x = 0; x < to_; ++x) to[x] = row[nearest_[x]];
      }
    }
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    return images_->ReadTargets(sample, out);
  }

 private:
  const std::unique_ptr<Dataset> images_;
  const int64_t channels_, from_, to_;
  std::vector<int64_t> nearest_;  // for each row or column, that of the original
};

}  // namespace

std::unique_ptr<Dataset> Resized(std::unique_ptr<Dataset> images, int channels, int from, int to) {
  if (from == to) return images;
  return std::make_unique<ResizedImages>(std::move(images), channels, from, to);
}

}  // namespace weft
