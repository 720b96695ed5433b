#include "worker/shell/data/augment.h"

#include <algorithm>
#include <vector>

#include "base/splitmix64.h"

namespace weft {
namespace {

constexpr uint64_t kAugmentStream = 2;  // random stream for augmentation, among those of a run's seed

// Computes out[x] = row[x + right], 0 outside of the row; null for a row of zeros.
void ShiftRow(const float* row, int64_t columns, int64_t right, float* out) {
  std::fill(out, out + columns, 0.0f);
  if (row == nullptr) return;
  const int64_t begin = std::max<int64_t>(0, -right), end = std::min(columns, columns - right);
  if (begin < end) std::copy(row + begin + right, row + end + right, out + begin);
}

}  // namespace

void Augment(const Augmentation& augment, uint64_t seed, const Sample& sample, const ImageShape& shape,
             float* image) {
  const uint64_t of_epoch = SplitMix64(SplitMix64(seed, kAugmentStream), static_cast<uint64_t>(sample.epoch));
  const uint64_t key = SplitMix64(of_epoch, static_cast<uint64_t>(sample.number));
  const auto shift = [&](uint64_t number) {
    const auto places = 2 * static_cast<uint64_t>(augment.crop) + 1;
    return static_cast<int64_t>(SplitMix64(key, number) % places) - augment.crop;
  };
  const int64_t down = shift(0), right = shift(1);
  const bool flips = augment.flip && (SplitMix64(key, 2) & 1) != 0;
  if (down == 0 && right == 0 && !flips) return;
  const std::vector<float> original(image, image + shape.pixels());
  for (int64_t channel = 0; channel < shape.channels; ++channel) {
    for (int64_t y = 0; y < shape.rows; ++y) {
      const int64_t from = y + down;
      const bool inside = from >= 0 && from < shape.rows;
      const float* const row =
          inside ? original.data() + (channel * shape.rows + from) * shape.columns : nullptr;
      float* const out = image + (channel * shape.rows + y) * shape.columns;
      ShiftRow(row, shape.columns, right, out);
      if (flips) std::reverse(out, out + shape.columns);
    }
  }
}

}  // namespace weft
