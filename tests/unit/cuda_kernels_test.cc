// The GPU's kernels, run on the host: the same bits as elementwise.cc and SumOfSquares, element by element.
#include "tests/unit/cuda_on_host.h"
// The following includes take their meaning from the above.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/cuda/flat_kernels.cu"

namespace weft::cuda_kernels_test {
namespace {

using Limbs = std::array<uint64_t, flat::kLimbs>;

// NaNs are one: which comes of an operation on two is the compiler's choice.
uint32_t BitsOrNan(float x) { return std::isnan(x) ? 0x7fc00000 : std::bit_cast<uint32_t>(x); }

void ExpectSameBits(const std::vector<float>& actual, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(BitsOrNan(actual[i]), BitsOrNan(expected[i]))
        << what << ": element " << i << " is " << actual[i] << ", not " << expected[i];
  }
}

// Every kind of value: ordinary ones, any bits at all, and the ends of each range.
std::vector<float> Values(size_t n, uint32_t seed, bool finite = false) {
  std::mt19937 random(seed);
  const float special[] = {0.0f,
                           -0.0f,
                           std::numeric_limits<float>::denorm_min(),
                           -std::numeric_limits<float>::min(),
                           std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::lowest(),
                           1.0f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> values(n);
  for (float& value : values) {
    do {
      switch (random() % 4) {
        case 0:
          value = std::bit_cast<float>(static_cast<uint32_t>(random()));
          break;
        case 1:
          value = special[random() % std::size(special)];
          break;
        default:
          value = std::ldexp(static_cast<float>(static_cast<int32_t>(random())),
                             -31 - static_cast<int>(random() % 8));
      }
    } while (finite && !std::isfinite(value));
  }
  return values;
}

Limbs LimbsOf(const SumOfSquares& sum) {
  Limbs limbs;
  sum.WriteLimbs(limbs.data());
  return limbs;
}

// Sizes that groups of four divide and do not; buffers aligned and not.
struct Layout {
  size_t n, shift;
};
const Layout kLayouts[] = {{0, 0}, {1, 0}, {3, 1}, {4, 0}, {1027, 0}, {1027, 2}};

SgdStep MakeSgd(float momentum, bool first) {
  SgdStep step{};
  step.lr = 0.1f;
  step.momentum = momentum;
  step.weight_decay = 1e-2f;
  step.first = first;
  return step;
}

AdamWStep MakeAdamW() {
  AdamWStep step{};
  step.keep = 1 - 3e-4f * 0.1f;
  step.beta1 = 0.9f;
  step.one_minus_beta1 = 1 - 0.9f;
  step.beta2 = 0.95f;
  step.one_minus_beta2 = 1 - 0.95f;
  step.eps = 1e-8f;
  step.step_size = 3e-4f / 0.19f;
  step.root_bias_correction = std::sqrt(1 - 0.95f * 0.95f);
  return step;
}

TEST(CudaKernels_Add, AnyValues_GiveTheHostsBits) {
  for (const Layout& layout : kLayouts) {
    std::vector<float> sum = Values(layout.n + layout.shift, 1), expected = sum;
    const std::vector<float> x = Values(layout.n + layout.shift, 2);
    kernels::Add(nullptr, sum.data() + layout.shift, x.data() + layout.shift, static_cast<int64_t>(layout.n));
    AddInPlace(expected.data() + layout.shift, x.data() + layout.shift, static_cast<int64_t>(layout.n));
    ExpectSameBits(sum, expected, "sum");
  }
}

TEST(CudaKernels_Add, MoreThanTheGridTakesAtOnce_AddsAll) {
  const int64_t n = 2 * 2048 * 1024 + 5;
  std::vector<float> sum(n, 1.0f);
  const std::vector<float> x(n, 2.0f);
  kernels::Add(nullptr, sum.data(), x.data(), n);
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], 3.0f) << i;
}

TEST(CudaKernels_Sgd, EveryForm_GivesTheHostsBits) {
  const float factor = 0.37f;
  for (const Layout& layout : kLayouts) {
    for (const auto& [momentum, first] : {std::pair{0.0f, false}, {0.9f, true}, {0.9f, false}}) {
      for (const float* scale : {static_cast<const float*>(nullptr), &factor}) {
        const SgdStep step = MakeSgd(momentum, first);
        const auto n = static_cast<int64_t>(layout.n);
        const std::vector<float> w = Values(layout.n + layout.shift, 3),
                                 g = Values(layout.n + layout.shift, 4);
        std::vector<float> m = Values(layout.n + layout.shift, 5), out = w, host_m = m, host_out = w;
        const size_t s = layout.shift;
        kernels::Sgd(nullptr, step, out.data() + s, out.data() + s, g.data() + s, m.data() + s, scale, n);
        ApplySgd(step, w.data() + s, host_out.data() + s, g.data() + s, host_m.data() + s, scale ? *scale : 1,
                 n);
        ExpectSameBits(out, host_out, "weights");
        ExpectSameBits(m, host_m, "momentum");
      }
    }
  }
}

TEST(CudaKernels_AdamW, AnyValues_GiveTheHostsBits) {
  const float factor = 0.37f;
  for (const Layout& layout : kLayouts) {
    for (const float* scale : {static_cast<const float*>(nullptr), &factor}) {
      const size_t s = layout.shift;
      const auto n = static_cast<int64_t>(layout.n);
      const std::vector<float> w = Values(layout.n + s, 6), g = Values(layout.n + s, 7);
      std::vector<float> m = Values(layout.n + s, 8), v = Values(layout.n + s, 9), out(layout.n + s);
      std::vector<float> host_m = m, host_v = v, host_out = out;
      kernels::AdamW(nullptr, MakeAdamW(), w.data() + s, out.data() + s, g.data() + s, m.data() + s,
                     v.data() + s, scale, n);
      ApplyAdamW(MakeAdamW(), w.data() + s, host_out.data() + s, g.data() + s, host_m.data() + s,
                 host_v.data() + s, scale ? *scale : 1, n);
      ExpectSameBits(out, host_out, "weights");
      ExpectSameBits(m, host_m, "mean");
      ExpectSameBits(v, host_v, "square");
    }
  }
}

TEST(CudaKernels_MoveAverage, InPlace_GivesTheHostsBits) {
  const AverageStep step{0.1f, 7};
  for (const Layout& layout : kLayouts) {
    const size_t s = layout.shift;
    const std::vector<float> sum = Values(layout.n + s, 10);
    std::vector<float> average = Values(layout.n + s, 11), expected = average;
    const auto n = static_cast<int64_t>(layout.n);
    kernels::MoveAverage(nullptr, step, average.data() + s, average.data() + s, sum.data() + s, n);
    MoveAverage(step, expected.data() + s, expected.data() + s, sum.data() + s, n);
    ExpectSameBits(average, expected, "average");
  }
}

TEST(CudaKernels_Narrow, Ties_GoToEvenAndNaNsStayNone) {
  const std::pair<uint32_t, uint16_t> cases[] = {
      {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
      {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0},
      {0xffffffff, 0x7fc0}, {0x00000001, 0x0000}, {0x00008001, 0x0001}, {0x80000000, 0x8000}};
  for (size_t shift : {0, 1}) {
    std::vector<float> x(std::size(cases) + shift);
    std::vector<uint16_t> out(std::size(cases) + shift);
    for (size_t i = 0; i < std::size(cases); ++i) x[i + shift] = std::bit_cast<float>(cases[i].first);
    kernels::Narrow(nullptr, out.data() + shift, x.data() + shift, std::size(cases));
    for (size_t i = 0; i < std::size(cases); ++i)
      EXPECT_EQ(out[i + shift], cases[i].second) << cases[i].first;
  }
}

std::vector<uint16_t> Narrowed(const std::vector<float>& values) {
  std::vector<uint16_t> narrow(values.size());
  for (size_t i = 0; i < values.size(); ++i) narrow[i] = flat::Narrow(values[i]);
  return narrow;
}
std::vector<float> Widened(const std::vector<uint16_t>& values) {
  std::vector<float> wide(values.size());
  for (size_t i = 0; i < values.size(); ++i) wide[i] = flat::Widen(values[i]);
  return wide;
}
static_assert(sizeof(BFloat16) == sizeof(uint16_t));

TEST(CudaKernels_Drop, EverySeedAndType_GivesTheHostsBits) {
  const uint64_t elsewhere = 0xfedcba9876543210;
  for (const Layout& layout : kLayouts) {
    const auto n = static_cast<int64_t>(layout.n);
    const size_t s = layout.shift;
    for (const uint64_t* seed : {static_cast<const uint64_t*>(nullptr), &elsewhere}) {
      for (const uint32_t threshold : {0u, 1u << 30, 0xffffffffu}) {
        const DropoutMask mask{threshold, 1 / 0.7f, 0x8000000000000001}, own{threshold, 1 / 0.7f, elsewhere};
        const std::vector<float> x = Values(layout.n + s, 16);
        std::vector<float> out = Values(layout.n + s, 17), expected = out;
        kernels::Drop(nullptr, mask, seed, x.data() + s, out.data() + s, n);
        Drop(seed == nullptr ? mask : own, x.data() + s, expected.data() + s, n);
        ExpectSameBits(out, expected, "float32");
        const std::vector<uint16_t> narrow = Narrowed(x);
        std::vector<uint16_t> narrow_out = Narrowed(Values(layout.n + s, 18)), narrow_expected = narrow_out;
        kernels::DropNarrow(nullptr, mask, seed, narrow.data() + s, narrow_out.data() + s, n);
        Drop(seed == nullptr ? mask : own, reinterpret_cast<const BFloat16*>(narrow.data() + s),
             reinterpret_cast<BFloat16*>(narrow_expected.data() + s), n);
        ExpectSameBits(Widened(narrow_out), Widened(narrow_expected), "bfloat16");
      }
    }
  }
}

TEST(CudaKernels_WriteNumbers, MoreThanOneLaunchTakes_AreAllThereAndNothingElse) {
  for (const size_t count : {0, 1, 255, 256, 257, 700}) {
    std::vector<uint64_t> numbers(count), to(count + 1, 5);
    for (size_t i = 0; i < count; ++i) numbers[i] = ~uint64_t{i};
    kernels::WriteNumbers(nullptr, to.data(), numbers.data(), static_cast<int64_t>(count));
    numbers.push_back(5);
    EXPECT_EQ(to, numbers);
  }
}

// More pieces than one launch takes, of both types, at any offset, with gaps and without.
struct ManyPieces {
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<uint16_t>> halves;
  std::vector<kernels::Piece> pieces;
  std::vector<float> flat;  // what they are, with zeros between
};
ManyPieces MakePieces(size_t count, size_t multiple) {
  std::mt19937 random(12);
  ManyPieces made;
  int64_t at = 0;
  for (size_t k = 0; k < count; ++k) {
    at += static_cast<int64_t>(random() % 3 * multiple);
    // Some take several blocks.
    const size_t n = random() % (k % 9 == 4 ? 700 : 60) * multiple + (multiple == 1 ? 1 : 0);
    const bool half = random() % 2 == 0;
    made.flat.resize(at, 0.0f);
    if (half) {
      std::vector<uint16_t> values(n);
      for (uint16_t& value : values) value = static_cast<uint16_t>(random());
      for (uint16_t value : values) made.flat.push_back(std::bit_cast<float>(uint32_t{value} << 16));
      made.halves.push_back(std::move(values));
      made.pieces.push_back({at, static_cast<int64_t>(n), made.halves.back().data(), true});
    } else {
      made.floats.push_back(Values(n, static_cast<uint32_t>(k)));
      made.flat.insert(made.flat.end(), made.floats.back().begin(), made.floats.back().end());
      made.pieces.push_back({at, static_cast<int64_t>(n), made.floats.back().data(), false});
    }
    at += static_cast<int64_t>(n);
  }
  made.flat.resize(at + 5, 0.0f);
  return made;
}

TEST(CudaKernels_WritePieces, ManyOfBothTypes_LeaveZerosBetween) {
  for (size_t multiple : {1, 16}) {
    for (size_t count : {0, 1, 80, 81, 333}) {
      const ManyPieces made = MakePieces(count, multiple);
      std::vector<float> out(made.flat.size(), 3.0f);
      kernels::WritePieces(nullptr, made.pieces.data(), static_cast<int64_t>(count), out.data(),
                           static_cast<int64_t>(out.size()));
      ExpectSameBits(out, made.flat, "flat");
    }
  }
}

TEST(CudaKernels_AddPieces, ManyOfBothTypes_AddWhereTheyAreAndNowhereElse) {
  for (size_t multiple : {1, 16}) {
    for (size_t count : {0, 1, 80, 81, 333}) {
      const ManyPieces made = MakePieces(count, multiple);
      std::vector<float> sum = Values(made.flat.size(), 13), expected = sum;
      for (const kernels::Piece& p : made.pieces) {
        for (int64_t i = p.offset; i < p.offset + p.n; ++i) expected[i] += made.flat[i];
      }
      kernels::AddPieces(nullptr, made.pieces.data(), static_cast<int64_t>(count), sum.data());
      ExpectSameBits(sum, expected, "sum");
    }
  }
}

TEST(CudaKernels_AddSquares, FiniteValues_GiveTheLimbsOfSumOfSquares) {
  for (size_t n : {0, 1, 127, 128, 129, 5000}) {
    const std::vector<float> x = Values(n, static_cast<uint32_t>(n), /*finite=*/true);
    SumOfSquares expected;
    ASSERT_TRUE(expected.Add(x.data(), static_cast<int64_t>(n)));
    Limbs limbs{};
    // The squares are added in two parts: the second is added to carried limbs.
    kernels::AddSquares(nullptr, limbs.data(), x.data(), static_cast<int64_t>(n / 3));
    kernels::AddSquares(nullptr, limbs.data(), x.data() + n / 3, static_cast<int64_t>(n - n / 3));
    EXPECT_EQ(limbs, LimbsOf(expected)) << n;
  }
}

TEST(CudaKernels_AddSquares, ManyOfTheLargest_CarryWithoutLoss) {
  const std::vector<float> x(9000, std::numeric_limits<float>::max());
  SumOfSquares expected;
  ASSERT_TRUE(expected.Add(x.data(), static_cast<int64_t>(x.size())));
  Limbs limbs{};
  kernels::AddSquares(nullptr, limbs.data(), x.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(limbs, LimbsOf(expected));
}

TEST(CudaKernels_AddSquares, OneValueThatIsNoNumber_LeavesNoNormForGood) {
  Limbs none{};
  none.back() = ~uint64_t{0};
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = Values(400, 14, /*finite=*/true);
    Limbs limbs{};
    kernels::AddSquares(nullptr, limbs.data(), x.data(), 400);
    Limbs good = limbs;
    x[399] = bad;
    kernels::AddSquares(nullptr, limbs.data(), x.data(), 400);
    EXPECT_EQ(limbs, none);
    kernels::AddSquares(nullptr, limbs.data(), x.data(), 300);
    EXPECT_EQ(limbs, none);
    kernels::AddSums(nullptr, good.data(), limbs.data());
    EXPECT_EQ(good, none);
    float factor = 0;
    kernels::ClipFactor(nullptr, &factor, none.data(), 0.5);
    EXPECT_EQ(factor, 1.0f);
  }
}

TEST(CudaKernels_AddSums, TwoSums_GiveTheLimbsOfTheWhole) {
  const std::vector<float> x = Values(3000, 15, /*finite=*/true);
  SumOfSquares whole;
  ASSERT_TRUE(whole.Add(x.data(), 3000));
  Limbs first{}, second{};
  kernels::AddSquares(nullptr, first.data(), x.data(), 1111);
  kernels::AddSquares(nullptr, second.data(), x.data() + 1111, 3000 - 1111);
  kernels::AddSums(nullptr, first.data(), second.data());
  EXPECT_EQ(first, LimbsOf(whole));
}

TEST(CudaKernels_ClipFactor, NormsOfAllSizes_GiveTheHostsBits) {
  std::mt19937 random(16);
  for (int round = 0; round < 2000; ++round) {
    // A few values of one scale, from the smallest to the largest, so that the sum ends in any limb.
    std::vector<float> x(1 + random() % 5);
    const int scale = static_cast<int>(random() % 276) - 149;
    for (float& value : x) value = std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000, scale);
    SumOfSquares sum;
    ASSERT_TRUE(sum.Add(x.data(), static_cast<int64_t>(x.size())));
    const Limbs limbs = LimbsOf(sum);
    ASSERT_EQ(flat::ValueOf(limbs.data()), sum.Value());
    const double most = std::ldexp(1.0, scale - 1 + static_cast<int>(random() % 4));
    float factor = 0;
    kernels::ClipFactor(nullptr, &factor, limbs.data(), most);
    ASSERT_EQ(std::bit_cast<uint32_t>(factor), std::bit_cast<uint32_t>(ClipFactor(sum.Norm(), most)));
  }
}

}  // namespace
}  // namespace weft::cuda_kernels_test
