#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/gradient_sum.h"
#include "worker/shell/compute/optimizer.h"

namespace weft {
namespace {

Tensor Flat(const std::vector<float>& values) {
  auto own = std::make_shared<std::vector<float>>(values);
  return {{DataType::kFloat32, 1, {static_cast<int64_t>(values.size())}},
          own->data(),
          values.size() * sizeof(float),
          own};
}

std::vector<float> Random(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random) * std::exp(4 * normal(random));
  return values;
}

std::vector<float> ValuesOf(const GradientSum& sum) { return {sum.data(), sum.data() + sum.elements()}; }

TEST(GradientSum, AnyOrderOfArrival_GivesTheSumInOrder) {
  constexpr int kCount = 5, kElements = 1000;
  std::vector<std::vector<float>> gradients;
  for (uint32_t b = 0; b < kCount; ++b) gradients.push_back(Random(kElements, b));
  std::vector<float> expected = gradients[0];
  for (int b = 1; b < kCount; ++b) {
    for (int i = 0; i < kElements; ++i) expected[i] += gradients[b][i];
  }
  std::vector<int> order = {0, 1, 2, 3, 4};
  do {
    GradientSum sum(Flat(std::vector<float>(kElements, NAN)), kCount);
    for (int b : order) {
      ASSERT_FALSE(sum.complete());
      ASSERT_TRUE(sum.Check(b).ok());
      sum.Add(b, Flat(gradients[b]));
      EXPECT_EQ(sum.Check(b).code(), absl::StatusCode::kAlreadyExists);
    }
    ASSERT_TRUE(sum.complete());
    ASSERT_EQ(ValuesOf(sum), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(GradientSum, Pieces_AreZeroBetweenThem) {
  GradientSum sum(Flat(std::vector<float>(10, NAN)), 2);
  const float a[] = {1, 2}, b[] = {3};
  const std::vector<GradientSum::Piece> pieces = {{1, 2, a}, {7, 1, b}};
  sum.AddPieces(0, pieces);
  sum.AddPieces(1, pieces);
  EXPECT_EQ(ValuesOf(sum), (std::vector<float>{0, 2, 4, 0, 0, 0, 0, 6, 0, 0}));
  EXPECT_EQ(sum.Check(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sum.Check(-1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(GradientSum, WaitingGradients_AreLetGoWhenAdded) {
  GradientSum sum(Flat({0}), 3);
  const Tensor early = Flat({2});
  sum.Add(1, early);
  EXPECT_EQ(early.owner.use_count(), 2);
  sum.Add(0, Flat({1}));
  EXPECT_EQ(early.owner.use_count(), 1);
  EXPECT_EQ(sum.next(), 2);
}

TEST(Slices, AnyPartition_CoversOnceAtCacheLines) {
  for (int64_t elements : {0, 16, 48, 1600, 1616, 12345 * 16}) {
    for (int parts : {1, 2, 3, 7, 64}) {
      int64_t at = 0, least = INT64_MAX, most = 0;
      for (int p = 0; p < parts; ++p) {
        const SliceBounds s = SliceOf(elements, p, parts);
        EXPECT_EQ(s.begin, at);
        EXPECT_EQ(s.begin % 16, 0);
        at = s.end;
        least = std::min(least, s.end - s.begin);
        most = std::max(most, s.end - s.begin);
      }
      EXPECT_EQ(at, elements);
      EXPECT_LE(most - least, 16);
    }
  }
  const Tensor flat = Flat(Random(160, 1));
  const Tensor slice = Slice(flat, 1, 2);
  EXPECT_EQ(slice.data, static_cast<float*>(flat.data) + 80);
  EXPECT_EQ(slice.shape.size[0], 80);
  EXPECT_EQ(slice.owner, flat.owner);
}

// One optimizer step of the whole buffer and of slices, in place and not: all the same bits.
TEST(OptimizerSteps, SlicesInPlaceAndNot_GiveTheBitsOfTheWhole) {
  SgdSpec plain, momentum;
  plain.weight_decay = 0.01;
  momentum.momentum = 0.9;
  for (const OptimizerSpec& spec : std::vector<OptimizerSpec>{plain, momentum, AdamWSpec{}}) {
    constexpr int kElements = 1003;
    std::vector<float> whole = Random(kElements, 1), cut = whole;
    std::vector<std::vector<float>> state(4, std::vector<float>(kElements, 0));
    Optimizer first(spec), second(spec);
    for (uint32_t step = 0; step < 5; ++step) {
      const std::vector<float> g = Random(kElements, 10 + step);
      std::vector<float> out(kElements);
      first.Begin(0.01, 0.75f);
      first.Apply(whole.data(), out.data(), g.data(), {state[0].data(), state[1].data()}, kElements);
      whole = out;
      second.Begin(0.01, 0.75f);
      for (int64_t begin = 0; begin < kElements;) {
        const int64_t n = std::min<int64_t>(1 + begin % 37, kElements - begin);
        second.Apply(cut.data() + begin, cut.data() + begin, g.data() + begin,
                     {state[2].data() + begin, state[3].data() + begin}, n);
        begin += n;
      }
      ASSERT_EQ(std::memcmp(whole.data(), cut.data(), sizeof(float) * kElements), 0);
    }
  }
}

}  // namespace
}  // namespace weft
