#include "proto/run/nearest_name.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(EditDistance_Pairs, KnownCases_CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("stagse", "stages"), 1);  // a swap of neighbours is one slip
  EXPECT_EQ(EditDistance("batch", "batches"), 2);
}

TEST(NearestName_Ties, SeveralEquallyNear_TakesTheFirst) {
  EXPECT_EQ(NearestName("beta3", {"lr", "beta1", "beta2"}), "beta1");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace weft
