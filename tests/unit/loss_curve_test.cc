#include "coordinator/record/loss_curve.h"

#include "gtest/gtest.h"

namespace weft::loss_curve_test {
namespace {

TEST(ParseLossCurve_Lines, StepsAndValidations_WhatIsNeitherIsLeftOut) {
  const LossCurve curve = ParseLossCurve(
      "{\"step\": 0, \"loss\": 5.5, \"seconds\": 0.1}\n"
      "{\"step\": 1, \"loss\": null, \"skipped\": true}\n"
      "{\"step\": 1, \"validation_loss\": 5.25, \"validation_accuracy\": 0.1}\n"
      "not JSON\n[]\n{\"loss\": 3}\n"
      "{\"step\": 2, \"loss\": 4.5}\n"
      "{\"step\": 2, \"lo");
  ASSERT_EQ(curve.training.size(), 2u);
  EXPECT_EQ(curve.training[1].step, 2);
  EXPECT_DOUBLE_EQ(curve.training[1].loss, 4.5);
  ASSERT_EQ(curve.validation.size(), 1u);
  EXPECT_DOUBLE_EQ(curve.validation[0].loss, 5.25);
  EXPECT_EQ(curve.subtitle, "steps 0 to 2; loss 5.5000 to 4.5000");
}

// A run that goes on makes some steps again.
TEST(ParseLossCurve_StepTwice, TheLaterLineCounts) {
  const LossCurve curve = ParseLossCurve("{\"step\": 3, \"loss\": 2}\n{\"step\": 3, \"loss\": 1}\n");
  ASSERT_EQ(curve.training.size(), 1u);
  EXPECT_DOUBLE_EQ(curve.training[0].loss, 1);
}

TEST(ParseLossCurve_Nothing, IsEmpty) { EXPECT_TRUE(ParseLossCurve("").training.empty()); }

}  // namespace
}  // namespace weft::loss_curve_test
