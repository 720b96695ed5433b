#include "worker/shell/torch/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <bit>
#include <vector>

#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/pass_numbers.h"

namespace weft::dropout_test {
namespace {

// x ^ (x >> bits), without the copies of the sign that a shift of LibTorch brings in.
at::Tensor XorShifted(const at::Tensor& x, int bits) {
  return x.bitwise_xor(x.bitwise_right_shift(bits).bitwise_and(static_cast<int64_t>(~uint64_t{0} >> bits)));
}

// The mask by another way: SplitMix64 in LibTorch's operations on int64, which wrap.
at::Tensor MaskByOperations(at::IntArrayRef sizes, double p, uint64_t seed) {
  const auto number = [](uint64_t bits) { return static_cast<int64_t>(bits); };
  at::Tensor z = at::arange(c10::multiply_integers(sizes), c10::TensorOptions().dtype(c10::kLong));
  z = z * number(0x9e3779b97f4a7c15) + number(seed);
  z = XorShifted(z, 30) * number(0xbf58476d1ce4e5b9);
  z = XorShifted(z, 27) * number(0x94d049bb133111eb);
  z = XorShifted(z, 31).bitwise_right_shift(32).bitwise_and(0xffffffff);
  const at::Tensor kept = z.ge(number(static_cast<uint64_t>(p * 4294967296.0)));
  return kept.to(c10::kFloat).mul(static_cast<double>(static_cast<float>(1 / (1 - p)))).view(sizes);
}

const uint64_t kSeeds[] = {0, 1, 0x8000000000000000, ~uint64_t{0}, 77742306446836058};
const c10::Device kCpu(c10::DeviceType::CPU);
const c10::ScalarType kTypes[] = {c10::kFloat, c10::kBFloat16};

// Expects equality to the bit, also of the sign of zeros.
void ExpectSameBits(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes(), expected.sizes());
  const auto type = got.scalar_type() == c10::kFloat ? c10::kInt : c10::kShort;
  EXPECT_TRUE(at::equal(got.contiguous().view(type), expected.contiguous().view(type)));
}

TEST(Dropout, Drop_IsTheProductWithTheMask) {
  for (const c10::ScalarType type : kTypes) {
    for (const int64_t n : {0, 1, 3, 17, 64, 1001}) {
      for (const uint64_t seed : kSeeds) {
        for (const double p : {0.0, 0.1, 0.5, 0.999, 1 - 1e-16}) {
          const at::Tensor x = at::randn({n}, c10::kFloat).to(type);
          SCOPED_TRACE(::testing::Message() << type << " " << n << " " << seed << " " << p);
          ExpectSameBits(Drop(HostMath(), x, p, {seed}), x * MaskByOperations({n}, p, seed).to(type));
        }
      }
    }
  }
}

TEST(Dropout, DroppedElements_KeepSignAndWhatIsNoNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const c10::ScalarType type : kTypes) {
    const at::Tensor
        values =
            Drop(HostMath(), at::ones({4000}, c10::kFloat).to(type) * -infinity, 0.5, {3}).to(c10::kFloat),
        zeros = Drop(HostMath(), at::ones({4000}, c10::kFloat).to(type) * -1, 0.5, {3}).to(c10::kFloat);
    int dropped = 0;
    for (int64_t i = 0; i < 4000; ++i) {
      const float value = values.const_data_ptr<float>()[i], zero = zeros.const_data_ptr<float>()[i];
      ASSERT_TRUE(std::signbit(zero)) << i;
      ASSERT_TRUE(zero == 0 ? std::isnan(value) : value == -infinity) << i;
      dropped += zero == 0 ? 1 : 0;
    }
    EXPECT_NEAR(dropped, 2000, 200);
  }
}

// Elements are numbered in the order of their indices, wherever they lie.
TEST(Dropout, StridedInput_HasTheMaskOfItsShape) {
  const at::Tensor x = at::randn({7, 11, 13}, c10::kFloat).transpose(0, 2);
  ExpectSameBits(Drop(HostMath(), x, 0.3, {5}), x * MaskByOperations({13, 11, 7}, 0.3, 5));
}

// Fixed: a change would give old runs other numbers.
TEST(Dropout, Mask_StaysTheSameAndHasItsShare) {
  const at::Tensor mask = Drop(HostMath(), at::ones({100000}, c10::kFloat), 0.25, {3});
  const float* values = mask.const_data_ptr<float>();
  int dropped = 0, first = -1;
  for (int i = 0; i < 100000; ++i) {
    ASSERT_TRUE(values[i] == 0 || values[i] == static_cast<float>(1 / 0.75));
    if (values[i] != 0) continue;
    ++dropped;
    if (first < 0) first = i;
  }
  EXPECT_NEAR(dropped, 25000, 600);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(dropped, 24967);
}

TEST(Dropout, Gradient_IsTheProductWithTheSameMask) {
  for (const c10::ScalarType type : kTypes) {
    const at::Tensor x = at::randn({5, 37}, c10::kFloat).to(type).requires_grad_();
    const at::Tensor y = Drop(HostMath(), x * 2, 0.4, {9});
    ASSERT_TRUE(y.requires_grad());
    const at::Tensor mask = MaskByOperations({5, 37}, 0.4, 9).to(type);
    // Strided, and from one graph more than once.
    for (const at::Tensor& gradient :
         {at::randn({5, 37}, c10::kFloat).to(type), at::randn({37, 5}, c10::kFloat).to(type).t(),
          at::ones({5, 1}, c10::kFloat).to(type).expand({5, 37})}) {
      const auto made = torch::autograd::grad({y}, {x}, {gradient}, /*retain_graph=*/true);
      ExpectSameBits(made[0], gradient * mask * 2);
    }
  }
}

TEST(Dropout, NothingToDrop_IsTheTensorItself) {
  const at::Tensor x = at::ones({8}, c10::kFloat);
  MaskKey evaluates;
  evaluates.training = false;
  EXPECT_TRUE(Dropout(x, 0.5, evaluates, 0, 0).is_same(x));
  EXPECT_TRUE(Dropout(x, 0, MaskKey(), 0, 0).is_same(x));
  EXPECT_THROW(Dropout(x, 0.5, MaskKey(), 0, 0), c10::Error);
}

TEST(Dropout, WithoutGraph_LeavesNone) {
  const at::Tensor x = at::ones({8}, c10::kFloat).requires_grad_();
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(Drop(HostMath(), x, 0.5, {1}).requires_grad());
}

// A captured pass works like this: its graph is made once, and its seeds change.
TEST(PassNumbers, GraphMadeOnce_DropsByTheSeedsOfEachMicrobatch) {
  PassNumbers numbers(HostMath(), kCpu, /*sites=*/2);
  MaskKey captured;
  captured.math = &HostMath();
  captured.numbers = &numbers;
  const at::Tensor x = at::randn({999}, c10::kFloat).requires_grad_();
  const at::Tensor first = Dropout(x, 0.2, captured, 3, 1), second = Dropout(x, 0.2, captured, 4, 0);
  for (const MaskKey& key : {MaskKey{7, 1, 0, true, &HostMath()}, MaskKey{7, 1, 3, true, &HostMath()},
                             MaskKey{7, 2, 0, true, &HostMath()}}) {
    numbers.Write(key);
    ExpectSameBits(Dropout(x, 0.2, captured, 3, 1), Dropout(x, 0.2, key, 3, 1));
    ExpectSameBits(Dropout(x, 0.2, captured, 4, 0), Dropout(x, 0.2, key, 4, 0));
    const auto made = torch::autograd::grad({(first + second * 3).sum()}, {x}, {}, /*retain_graph=*/true);
    const auto expected =
        torch::autograd::grad({(Dropout(x, 0.2, key, 3, 1) + Dropout(x, 0.2, key, 4, 0) * 3).sum()}, {x});
    ExpectSameBits(made[0], expected[0]);
  }
}

TEST(PassNumbers, Site_HasOnePlaceAndOneTooManyIsRefused) {
  PassNumbers numbers(HostMath(), kCpu, /*sites=*/2);
  const uint64_t* const first = numbers.SeedOf(4, 7);
  EXPECT_NE(numbers.SeedOf(4, 8), first);
  EXPECT_EQ(numbers.SeedOf(4, 7), first);
  EXPECT_THROW(numbers.SeedOf(5, 7), c10::Error);
}

TEST(PassNumbers, LossDivisor_IsThatOfTheLastWrite) {
  PassNumbers numbers(HostMath(), kCpu, /*sites=*/0);
  const at::Tensor divisor = numbers.LossDivisor();
  for (const float number : {2.5f, 12.0f}) {
    MaskKey key;
    key.loss_divisor = number;
    numbers.Write(key);
    EXPECT_EQ(divisor.item<float>(), number);
  }
}

}  // namespace
}  // namespace weft::dropout_test
