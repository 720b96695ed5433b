#include "worker/shell/loop/silence_reports.h"

#include "gtest/gtest.h"

namespace weft::silence_reports_test {
namespace {

TEST(SilenceReports, Silence_IsReportedWhenItBeginsNowAndThenAndWhenItIsOver) {
  SilenceReports reports(/*interval_ns=*/10);
  EXPECT_FALSE(reports.IsDue(100, false));
  EXPECT_TRUE(reports.IsDue(101, true));
  EXPECT_FALSE(reports.IsDue(110, true));
  EXPECT_TRUE(reports.IsDue(111, true));
  EXPECT_FALSE(reports.IsDue(112, true));
  EXPECT_TRUE(reports.IsDue(113, false)) << "it is over";
  EXPECT_FALSE(reports.IsDue(114, false));
}

TEST(SilenceReports, EndOfARun_ForgetsIt) {
  SilenceReports reports(10);
  EXPECT_TRUE(reports.IsDue(100, true));
  reports.Clear();
  EXPECT_FALSE(reports.IsDue(101, false));
  EXPECT_TRUE(reports.IsDue(102, true));
}

}  // namespace
}  // namespace weft::silence_reports_test
