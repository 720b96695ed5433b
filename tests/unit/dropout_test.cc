#include "worker/shell/compute/dropout.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

TEST(Dropout, MaskByOperations_IsTheHostsBits) {
  for (const uint64_t seed :
       {uint64_t{0}, uint64_t{1}, uint64_t{0x8000000000000000}, ~uint64_t{0}, uint64_t{77742306446836058}}) {
    for (const double p : {0.0, 0.1, 0.5, 0.999}) {
      const at::Tensor host = MaskOnHost({7, 11, 13}, p, seed),
                       made = MaskByOperations({7, 11, 13}, p, seed, kCpu);
      EXPECT_EQ(made.scalar_type(), c10::kFloat);
      EXPECT_EQ(made.sizes(), host.sizes());
      EXPECT_TRUE(at::equal(host, made)) << seed << " " << p;
    }
  }
  EXPECT_EQ(MaskByOperations({0, 3}, 0.5, 1, kCpu).numel(), 0);
}

// Fixed: a change would give old runs other numbers.
TEST(Dropout, Mask_StaysTheSameAndHasItsShare) {
  const at::Tensor mask = MaskOnHost({100000}, 0.25, 3);
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

TEST(Dropout, NarrowInput_KeepsItsType) {
  const at::Tensor x = at::ones({50}, c10::kBFloat16);
  const at::Tensor y = Drop(x, 0.5, 9);
  EXPECT_EQ(y.scalar_type(), c10::kBFloat16);
  EXPECT_TRUE(at::equal(y.to(c10::kFloat), MaskOnHost({50}, 0.5, 9)));  // 0 and 2
}

}  // namespace
}  // namespace weft
