// Formulas of custom schedules: exact values, and refusals that say where.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/families/formula.h"

namespace weft::schedule_formula_test {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kNames = {"s", "b"};

int64_t Value(const std::string& text, int64_t s = 0, int64_t b = 0) {
  const auto formula = Formula::Parse(text, kNames, {{"R", 4}, {"forward", 0}});
  EXPECT_TRUE(formula.ok()) << text << ": " << formula.status();
  if (!formula.ok()) return -1;
  const auto value = formula->Evaluate({s, b});
  EXPECT_TRUE(value.ok()) << text << ": " << value.status();
  return value.value_or(-1);
}

std::string Problem(const std::string& text, int64_t s = 0, int64_t b = 0) {
  const auto formula = Formula::Parse(text, kNames, {{"R", 4}});
  if (!formula.ok()) return std::string(formula.status().message());
  const auto value = formula->Evaluate({s, b});
  return value.ok() ? "" : std::string(value.status().message());
}

TEST(Formula, Operators_GiveWholeNumbersWithTheUsualPrecedence) {
  EXPECT_EQ(Value("7/2"), 3);
  EXPECT_EQ(Value("7 % 4 + 2*3"), 9);
  EXPECT_EQ(Value("-s + b", 3, 5), 2);
  EXPECT_EQ(Value("2 - -3"), 5);
  EXPECT_EQ(Value("10 - 4 - 3"), 3);
  EXPECT_EQ(Value("(R*b) % 8 + s % R", 6, 3), 4 + 2);
  EXPECT_EQ(Value("s < b == 1", 1, 2), 1);
  EXPECT_EQ(Value("s <= b && b != 3 || s > 9", 1, 2), 1);
  EXPECT_EQ(Value("!s + !b", 0, 2), 1);
  EXPECT_EQ(Value("min(s, b, 9) + max(s, 2) + abs(-R)", 1, 5), 1 + 2 + 4);
  EXPECT_EQ(Value("s == 0 ? 10 : s == 1 ? 20 : 30", 1), 20);
  EXPECT_EQ(Value("forward"), 0);
}

TEST(Formula, ChosenSideOfAConditional_IsTheOnlyOneEvaluated) {
  EXPECT_EQ(Value("s == 0 ? 5 : 7 / s", 0), 5);
  EXPECT_EQ(Value("s == 0 ? 5 : 7 / s", 2), 3);
}

TEST(Formula, EveryPairOfSmallNumbers_DividesAsInCpp) {
  const auto quotient = Formula::Parse("s / b", kNames, {}), rest = Formula::Parse("s % b", kNames, {});
  for (int64_t s = 0; s < 60; ++s) {
    for (int64_t b = 1; b < 60; ++b) {
      ASSERT_EQ(*quotient->Evaluate({s, b}), s / b);
      ASSERT_EQ(*rest->Evaluate({s, b}), s % b);
    }
  }
}

TEST(Formula, LargestNumbers_AreExactOrRefused) {
  EXPECT_EQ(Value("9007199254740991 - 9007199254740990"), 1);
  EXPECT_EQ(Value("94906265 * 94906265"), int64_t{94906265} * 94906265);
  EXPECT_THAT(Problem("9007199254740992"), HasSubstr("2^53"));
  EXPECT_THAT(Problem("94906266 * 94906266"), HasSubstr("2^53"));
  EXPECT_THAT(Problem("9007199254740991 + 1"), HasSubstr("2^53"));
  EXPECT_THAT(Problem("99999999999999999999999999"), HasSubstr("2^53"));
}

TEST(Formula, DivisionByZeroOrOfNegatives_IsRefused) {
  EXPECT_THAT(Problem("s / b", 3, 0), HasSubstr("3 / 0: a division by zero"));
  EXPECT_THAT(Problem("s % b", 3, 0), HasSubstr("division by zero"));
  EXPECT_THAT(Problem("(s - b) % R", 1, 2), HasSubstr("from 0 up"));
  EXPECT_THAT(Problem("s / (0 - R)", 1), HasSubstr("from 0 up"));
}

TEST(Formula, WhatIsNoFormula_IsNamedWithItsColumn) {
  EXPECT_THAT(Problem("s + q * 2"), HasSubstr("column 5: there is no \"q\"; there are s, b, R"));
  EXPECT_THAT(Problem("s + * b"), HasSubstr("column 5"));
  EXPECT_THAT(Problem("(s + b"), HasSubstr("parenthesis is missing"));
  EXPECT_THAT(Problem("s + 1.5"), HasSubstr("column 6"));
  EXPECT_THAT(Problem("1e3"), HasSubstr("column 1"));
  EXPECT_THAT(Problem("2s"), HasSubstr("column 1"));
  EXPECT_THAT(Problem("s ^ 2"), HasSubstr("column 3"));
  EXPECT_THAT(Problem("s = 3"), HasSubstr("column 3"));
  EXPECT_THAT(Problem("s ? 1"), HasSubstr("?"));
  EXPECT_THAT(Problem("s, b"), HasSubstr("several"));
  EXPECT_THAT(Problem("\"x\""), HasSubstr("column"));
  EXPECT_NE(Problem(""), "");
  EXPECT_NE(Problem("   "), "");
  EXPECT_NE(Problem("min()"), "");
  EXPECT_THAT(Problem("abs(1, 2)"), HasSubstr("abs"));
  EXPECT_THAT(Problem(std::string(5000, '1')), HasSubstr("5000 characters"));
  EXPECT_THAT(Problem(std::string("s\0b", 3)), HasSubstr("column 2"));
  EXPECT_THAT(Problem("s \xc3\x97 2"), HasSubstr("column 3"));
}

TEST(Formula, Uses_NamesTheVariablesOfTheFormula) {
  const auto formula = Formula::Parse("b * R", kNames, {{"R", 4}});
  ASSERT_TRUE(formula.ok());
  EXPECT_FALSE(formula->Uses("s"));
  EXPECT_TRUE(formula->Uses("b"));
  EXPECT_FALSE(formula->Uses("R"));
}

TEST(Formula, DeepNesting_IsReadOrRefused) {
  const std::string deep = absl::StrCat(std::string(400, '('), "s", std::string(400, ')'));
  EXPECT_EQ(Value(deep, 7), 7);
}

}  // namespace
}  // namespace weft::schedule_formula_test
