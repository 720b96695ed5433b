#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/gradient_sum.h"
#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/optimizer.h"

namespace weft::compute_gradient_sum_test {
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

// Memory of the host that records for which tensors it was to wait.
class Host final : public FlatMemory {
 public:
  const FlatMath& math() const override { return HostMath(); }
  absl::StatusOr<Tensor> NewFlat(int64_t elements, MemoryClass, DataType) override {
    return Flat(std::vector<float>(elements, NAN));
  }
  Tensor Await(Tensor tensor) override {
    awaited_.push_back(tensor.data);
    return tensor;
  }
  std::vector<void*> awaited_;
};

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
    Host host;
    GradientSum sum(host, Flat(std::vector<float>(kElements, NAN)), kCount);
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
  Host host;
  GradientSum sum(host, Flat(std::vector<float>(10, NAN)), 2);
  const float a[] = {1, 2}, b[] = {3};
  const std::vector<FlatPiece> pieces = {{1, 2, a}, {7, 1, b}};
  sum.AddPieces(0, pieces);
  sum.AddPieces(1, pieces);
  EXPECT_EQ(ValuesOf(sum), (std::vector<float>{0, 2, 4, 0, 0, 0, 0, 6, 0, 0}));
  EXPECT_EQ(sum.Check(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sum.Check(-1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(GradientSum, WaitingGradients_AreLetGoWhenAdded) {
  Host host;
  GradientSum sum(host, Flat({0}), 3);
  const Tensor early = Flat({2}), first = Flat({1});
  sum.Add(1, early);
  EXPECT_EQ(early.owner.use_count(), 2);
  sum.Add(0, first);
  EXPECT_EQ(early.owner.use_count(), 1);
  EXPECT_EQ(sum.next(), 2);
  // Each in the job that reads it.
  EXPECT_EQ(host.awaited_, (std::vector<void*>{first.data, early.data}));
}

std::vector<float> ValuesOf(const Tensor& t) {
  const auto* begin = static_cast<const float*>(t.data);
  return {begin, begin + t.bytes / sizeof(float)};
}

TEST(StageSums, SumWhatComes_TakesAnyMicrobatchesInTheOrderOfArrival) {
  Host host;
  StageSums sums(host, 3, 8);
  sums.SumWhatComes();
  const std::vector<float> big = {1e8f, 1, 2}, small = {1, 10, 20}, back = {-1e8f, 100, 200};
  const auto add = [&](int step, int microbatch, const std::vector<float>& g) {
    return sums.Add(step, microbatch, {{0, 3, g.data()}});
  };
  ASSERT_TRUE(add(0, 6, big).ok());
  ASSERT_TRUE(add(1, 2, small).ok());  // another step's
  ASSERT_TRUE(add(0, 1, small).ok());
  ASSERT_TRUE(add(0, 3, back).ok());
  EXPECT_EQ(add(0, 1, small).code(), absl::StatusCode::kAlreadyExists);
  const auto first = sums.Take(0, 0, 1), second = sums.Take(1, 0, 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(ValuesOf(*first), (std::vector<float>{1e8f + 1 - 1e8f, 111, 222}));
  EXPECT_EQ(ValuesOf(*second), small);
  EXPECT_TRUE(add(0, 1, small).ok()) << "what was taken is forgotten";
}

TEST(StageSums, SumWhatComes_NothingCame_IsZero) {
  Host host;
  StageSums sums(host, 3, 8);
  sums.SumWhatComes();
  const auto nothing = sums.Take(5, 0, 1);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_EQ(ValuesOf(*nothing), (std::vector<float>{0, 0, 0}));
}

TEST(HostMath, NarrowPieces_AddAndWriteAsTheirFloats) {
  const std::vector<float> values = Random(33, 5);
  std::vector<BFloat16> narrow(values.size());
  HostMath().Narrow(narrow.data(), values.data(), 33);
  std::vector<float> out(50, NAN), sum(50, 1);
  const std::vector<FlatPiece> pieces = {{9, 33, narrow.data(), DataType::kBFloat16}};
  HostMath().WritePieces(pieces, out.data(), 50);
  HostMath().AddPieces(pieces, sum.data());
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(sum[i], 1 + out[i]);
    if (i < 9 || i >= 42) {
      EXPECT_EQ(out[i], 0);
    }
  }
  for (int i = 0; i < 33; ++i) EXPECT_LE(std::abs(out[9 + i] - values[i]), std::abs(values[i]) / 256);
}

TEST(HostMath, Narrow_RoundsToTheNearestTiesToEven) {
  const auto narrowed = [](uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    BFloat16 out;
    HostMath().Narrow(&out, &x, 1);
    return out.bits;
  };
  EXPECT_EQ(narrowed(0x3f800000), 0x3f80);
  EXPECT_EQ(narrowed(0x3f807fff), 0x3f80);
  EXPECT_EQ(narrowed(0x3f808000), 0x3f80);  // a tie
  EXPECT_EQ(narrowed(0x3f818000), 0x3f82);  // a tie
  EXPECT_EQ(narrowed(0x3f808001), 0x3f81);
  EXPECT_EQ(narrowed(0x80000000), 0x8000);
  EXPECT_EQ(narrowed(0x7f7fffff), 0x7f80);  // beyond the largest
  EXPECT_EQ(narrowed(0xff800000), 0xff80);
  EXPECT_EQ(narrowed(0x7f800001), 0x7fc0);  // no number
  EXPECT_EQ(narrowed(0xffffffff), 0x7fc0);
}

// The bits without a factor, and with one of 1, are those of the gradient itself: also of -0 and of a NaN.
TEST(HostMath, FactorOfOne_IsNoFactor) {
  const float one = 1;
  std::vector<float> g = Random(100, 3);
  g[0] = -0.0f;
  g[1] = NAN;
  g[2] = -INFINITY;
  for (const OptimizerSpec& spec : std::vector<OptimizerSpec>{SgdSpec{0.1, 0.9, 0}, AdamWSpec{}}) {
    std::vector<std::vector<float>> made;
    for (const float* factor : {static_cast<const float*>(nullptr), &one}) {
      std::vector<float> weights(100, -0.0f), state(100, 0), other(100, 0);
      Optimizer optimizer(spec);
      optimizer.Begin(0.1);
      optimizer.Apply(HostMath(), weights.data(), weights.data(), g.data(), {state.data(), other.data()},
                      factor, 100);
      made.push_back(weights);
      made.back().insert(made.back().end(), state.begin(), state.end());
    }
    EXPECT_EQ(std::memcmp(made[0].data(), made[1].data(), 200 * sizeof(float)), 0);
  }
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
      const float factor = 0.75f;
      first.Begin(0.01);
      first.Apply(HostMath(), whole.data(), out.data(), g.data(), {state[0].data(), state[1].data()}, &factor,
                  kElements);
      whole = out;
      second.Begin(0.01);
      for (int64_t begin = 0; begin < kElements;) {
        const int64_t n = std::min<int64_t>(1 + begin % 37, kElements - begin);
        second.Apply(HostMath(), cut.data() + begin, cut.data() + begin, g.data() + begin,
                     {state[2].data() + begin, state[3].data() + begin}, &factor, n);
        begin += n;
      }
      ASSERT_EQ(std::memcmp(whole.data(), cut.data(), sizeof(float) * kElements), 0);
    }
  }
}

}  // namespace
}  // namespace weft::compute_gradient_sum_test
