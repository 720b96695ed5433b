#include "worker/shell/data/augment.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "base/splitmix64.h"
#include "gtest/gtest.h"

namespace weft::augment_test {
namespace {

constexpr ImageShape kShape = {2, 3, 5};

std::vector<float> Image() {
  std::vector<float> image(kShape.pixels());
  std::iota(image.begin(), image.end(), 1.0f);
  return image;
}

// Computes the rule in the words of the header, pixel by pixel.
std::vector<float> ByTheRule(const Augmentation& augment, uint64_t seed, const Sample& sample) {
  const uint64_t key = SplitMix64(SplitMix64(SplitMix64(seed, 2), sample.epoch), sample.number);
  const auto places = 2 * static_cast<uint64_t>(augment.crop) + 1;
  const auto down = static_cast<int64_t>(SplitMix64(key, 0) % places) - augment.crop;
  const auto right = static_cast<int64_t>(SplitMix64(key, 1) % places) - augment.crop;
  const bool flips = augment.flip && SplitMix64(key, 2) % 2 == 1;
  const std::vector<float> image = Image();
  std::vector<float> result;
  for (int64_t c = 0; c < kShape.channels; ++c) {
    for (int64_t y = 0; y < kShape.rows; ++y) {
      for (int64_t x = 0; x < kShape.columns; ++x) {
        const int64_t row = y + down, column = (flips ? kShape.columns - 1 - x : x) + right;
        const bool inside = row >= 0 && row < kShape.rows && column >= 0 && column < kShape.columns;
        result.push_back(inside ? image[(c * kShape.rows + row) * kShape.columns + column] : 0);
      }
    }
  }
  return result;
}

std::vector<float> Augmented(const Augmentation& augment, uint64_t seed, const Sample& sample) {
  std::vector<float> image = Image();
  Augment(augment, seed, sample, kShape, image.data());
  return image;
}

TEST(Augment, CropAndFlip_AreTheDocumentedOnes) {
  for (const int crop : {0, 1, 2, 7}) {  // 7: more than the image has
    for (const bool flip : {false, true}) {
      for (int64_t number = 0; number < 50; ++number) {
        const Sample sample{number, number / 7};
        ASSERT_EQ(Augmented({crop, flip}, 3, sample), ByTheRule({crop, flip}, 3, sample))
            << crop << " " << flip << " " << number;
      }
    }
  }
}

TEST(Augment, FlipAlone_MirrorsHalfOfTheImages) {
  constexpr int kImages = 2000;
  int flipped = 0;
  for (int64_t number = 0; number < kImages; ++number) {
    const std::vector<float> image = Augmented({0, true}, 1, {number, 0});
    const bool mirrored = image[0] == 5;
    EXPECT_EQ(image[1], mirrored ? 4 : 2);
    flipped += mirrored;
  }
  EXPECT_NEAR(flipped, kImages / 2.0, 5 * std::sqrt(kImages / 4.0));
}

// The same image is changed otherwise in the next epoch, and with another seed.
TEST(Augment, SeedEpochAndNumber_AllMatter) {
  const Augmentation augment{2, true};
  const auto differs = [&](uint64_t seed, const Sample& sample) {
    int others = 0;
    for (int64_t i = 0; i < 40; ++i) {
      const Sample moved{sample.number * i, sample.epoch * i};
      others +=
          Augmented(augment, 1 + seed * static_cast<uint64_t>(i), moved) != Augmented(augment, 1, {0, 0});
    }
    return others;
  };
  EXPECT_GT(differs(1, {0, 0}), 30);
  EXPECT_GT(differs(0, {1, 0}), 30);
  EXPECT_GT(differs(0, {0, 1}), 30);
}

}  // namespace
}  // namespace weft::augment_test
