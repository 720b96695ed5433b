// The exact sum of squares against constants that rational arithmetic made (Python's fractions, whose
// division rounds to the nearest double).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/sum_of_squares.h"

namespace weft::compute_sum_of_squares_test {
namespace {

// Float32 bit patterns from x = x * 1664525 + 1013904223 mod 2^32, x beginning as `seed`, under two masks.
std::vector<float> Patterns(uint32_t seed, int n, uint32_t kept = 0xffffffff, uint32_t set = 0) {
  std::vector<float> values;
  for (uint32_t x = seed; n > 0; --n) {
    x = x * 1664525 + 1013904223;
    uint32_t bits = (x & kept) | set;
    if ((bits >> 23 & 255) == 255) bits &= ~(uint32_t{1} << 23);  // finite
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

SumOfSquares SumOf(const std::vector<float>& values) {
  SumOfSquares sum;
  EXPECT_TRUE(sum.Add(values.data(), static_cast<int64_t>(values.size())));
  return sum;
}

Tensor LimbsOf(const SumOfSquares& sum) {
  auto limbs = std::make_shared<std::array<uint64_t, SumOfSquares::kLimbs>>();
  sum.WriteLimbs(limbs->data());
  Tensor tensor;
  tensor.shape = {DataType::kInt64, 1, {SumOfSquares::kLimbs}};
  tensor.data = limbs->data();
  tensor.bytes = SumOfSquares::kBytes;
  tensor.owner = limbs;
  return tensor;
}

TEST(SumOfSquares_Value, ValuesOfAllExponents_IsTheNearestDouble) {
  EXPECT_EQ(SumOf({}).Value(), 0);
  EXPECT_EQ(SumOf({0.0f, -0.0f}).Value(), 0);
  EXPECT_EQ(SumOf(Patterns(1, 1000)).Value(), 0x1.1425a7efa4d78p+259);
  EXPECT_EQ(SumOf(Patterns(2, 777, 0x807fffff)).Value(), 0x1.11d5a751b21a3p-244);  // denormals alone
  EXPECT_EQ(SumOf(Patterns(3, 5001, 0x83ffffff, 0x30000000)).Value(), 0x1.e70c8febb53c8p-38);
  EXPECT_EQ(SumOf(Patterns(4, 4099, 0x9fffffff)).Value(), 0x1.7f4608f1bbd52p-121);
  EXPECT_EQ(SumOf({std::numeric_limits<float>::denorm_min()}).Value(), 0x1p-298);
  EXPECT_EQ(SumOf(std::vector<float>(3, std::numeric_limits<float>::max())).Value(), 0x1.7ffffd0000018p+257);
  EXPECT_EQ(SumOf({3, -4}).Norm(), 5);
}

// There are so many of one exponent, with the largest mantissa, that all tables are filled to the brim twice.
TEST(SumOfSquares_Value, ManyLargestMantissas_NothingOverflows) {
  EXPECT_EQ(SumOf(std::vector<float>(524365, 16777215.0f)).Value(), 0x1.00099dffecc10p+67);
}

// 2^54 and its next doubles are 4 apart.
TEST(SumOfSquares_Value, BetweenTwoDoubles_RoundsOnceAndTiesToEven) {
  constexpr float kRoot = 1 << 27, kTiny = std::numeric_limits<float>::denorm_min();
  const double base = std::ldexp(1, 54);
  EXPECT_EQ(SumOf({kRoot, 1}).Value(), base);
  EXPECT_EQ(SumOf({kRoot, 1, 1}).Value(), base);
  EXPECT_EQ(SumOf({kRoot, 1, 1, 1}).Value(), base + 4);
  EXPECT_EQ(SumOf({kRoot, 1, 1, kTiny}).Value(), base + 4);
  EXPECT_EQ(SumOf({kRoot, 2, 1, 1}).Value(), base + 8);
  EXPECT_EQ(SumOf({kTiny, 2, kRoot, 1}).Value(), base + 4);
}

TEST(SumOfSquares_Bits, AnyOrderAndAnyCut_AreTheSame) {
  std::vector<float> values = Patterns(5, 3001);
  const SumOfSquares whole = SumOf(values);
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<SumOfSquares> parts(1 + random() % 9);
    for (size_t begin = 0; begin < values.size();) {
      const size_t n = std::min<size_t>(random() % 400, values.size() - begin);
      EXPECT_TRUE(parts[random() % parts.size()].Add(values.data() + begin, static_cast<int64_t>(n)));
      begin += n;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    SumOfSquares sum;
    for (const SumOfSquares& part : parts) sum.Add(part);
    ASSERT_EQ(sum, whole);
  }
  values[0] = std::nextafter(values[0], 0.0f);
  EXPECT_NE(SumOf(values), whole);
}

TEST(SumOfSquares_NotFinite, AnywhereAmongValues_IsSaid) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {0, 5, 9}) {
      std::vector<float> values(10, 1);
      values[at] = bad;
      SumOfSquares sum, other = SumOf({1, 2});
      EXPECT_FALSE(sum.Add(values.data(), 10)) << bad << " at " << at;
      EXPECT_FALSE(sum.has_norm());
      EXPECT_TRUE(std::isnan(sum.Norm()));
      // Values added later, on either side or as limbs, leave the sum not finite.
      const float one = 1;
      EXPECT_FALSE(sum.Add(&one, 1));
      other.Add(sum);
      EXPECT_EQ(other, sum);
      uint64_t limbs[SumOfSquares::kLimbs] = {};
      HostMath().AddSquares(limbs, &one, 1);
      HostMath().AddSquares(limbs, values.data(), 10);
      HostMath().AddSquares(limbs, &one, 1);
      EXPECT_EQ(SumOfSquares::FromLimbs(limbs), sum);
      EXPECT_EQ(*SumOfSquares::FromTensor(LimbsOf(sum)), sum);
    }
  }
}

TEST(SumOfSquares_Tensor, ThereAndBack_IsTheSameAndOthersAreRefused) {
  const SumOfSquares sum = SumOf(Patterns(6, 100));
  Tensor tensor = LimbsOf(sum);
  EXPECT_EQ(tensor.bytes, SumOfSquares::kBytes);
  const auto back = SumOfSquares::FromTensor(tensor);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, sum);
  static_cast<uint64_t*>(tensor.data)[3] = uint64_t{1} << 32;
  EXPECT_EQ(SumOfSquares::FromTensor(tensor).status().code(), absl::StatusCode::kInvalidArgument);
  tensor.bytes -= 8;
  EXPECT_EQ(SumOfSquares::FromTensor(tensor).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SumOfSquares::FromTensor({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClipFactor_Norm, AboveAndBelow_IsAtMostOne) {
  EXPECT_EQ(ClipFactor(0, 1), 1.0f);
  EXPECT_EQ(ClipFactor(1, 1), 1.0f);
  EXPECT_EQ(ClipFactor(4, 1), 0.25f);
  EXPECT_EQ(ClipFactor(0.5, 0.25), 0.5f);
  EXPECT_EQ(ClipFactor(std::numeric_limits<double>::quiet_NaN(), 1), 1.0f);
  const SumOfSquares five = SumOf({3, -4});
  float factor = 0;
  HostMath().ClipFactor(&factor, static_cast<const uint64_t*>(LimbsOf(five).data), 1);
  EXPECT_EQ(factor, 0.2f);
}

}  // namespace
}  // namespace weft::compute_sum_of_squares_test
