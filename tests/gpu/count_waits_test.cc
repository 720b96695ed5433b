// Tests that the counter sees LibTorch's calls, for which no GPU is needed.
#include "tests/gpu/count_waits.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace weft::testing {
namespace {

void Synchronize() {
  try {
    c10::cuda::device_synchronize();
  } catch (const c10::Error&) {  // where there is no GPU
  }
}

TEST(CountWaits, CallFromWithinLibTorch_IsCounted) {
  CountWaits counted;
  EXPECT_TRUE(counted.calls().empty());
  Synchronize();
  ASSERT_EQ(counted.calls().size(), 1u);
  EXPECT_EQ(counted.calls().begin()->first, "cudaDeviceSynchronize");
  EXPECT_EQ(counted.calls().begin()->second, 1);
}

TEST(CountWaits, NobodyCounting_CountsNothing) {
  { const CountWaits before; }
  Synchronize();
  const CountWaits after;
  EXPECT_TRUE(after.calls().empty());
}

}  // namespace
}  // namespace weft::testing
