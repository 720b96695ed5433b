// Tests what every daemon shows of itself, and histograms whose counts are kept elsewhere.
#include "base/metrics/daemon_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::daemon_metrics_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DaemonMetricsTest : public ::testing::Test {
 protected:
  std::string Text() {
    shown_.Refresh();
    return metrics_.Text();
  }

  Metrics metrics_;
  DaemonLog log_{"test", LogSeverity::kError};
  LastReload reload_;
  int64_t dumps_ = 0;
  DaemonMetrics shown_{&metrics_, {&log_, &reload_, [this] { return dumps_; }}, SecurityFlags()};
};

TEST_F(DaemonMetricsTest, Events_AreCountedByLevelAlsoWhereTheyAreNotWritten) {
  EXPECT_THAT(Text(), HasSubstr("weft_log_messages_total{level=\"warning\"} 0"));
  log_.Warning("a");
  log_.Warning("b");
  log_.Info("c");
  EXPECT_THAT(Text(), AllOf(HasSubstr("weft_log_messages_total{level=\"warning\"} 2"),
                            HasSubstr("weft_log_messages_total{level=\"info\"} 1"),
                            HasSubstr("weft_log_messages_total{level=\"error\"} 0")));
}

TEST_F(DaemonMetricsTest, RefusedReload_ShowsUntilOneIsTaken) {
  const double at_start = reload_.taken_unix_seconds();
  EXPECT_GT(at_start, 0);
  EXPECT_THAT(Text(), HasSubstr("weft_config_last_reload_successful 1"));
  reload_.Note(false);
  EXPECT_THAT(Text(), HasSubstr("weft_config_last_reload_successful 0"));
  EXPECT_EQ(reload_.taken_unix_seconds(), at_start);
  reload_.Note(true);
  EXPECT_THAT(Text(), HasSubstr("weft_config_last_reload_successful 1"));
  EXPECT_GE(reload_.taken_unix_seconds(), at_start);
}

TEST_F(DaemonMetricsTest, Dumps_AreCounted) {
  dumps_ = 3;
  EXPECT_THAT(Text(), HasSubstr("weft_flight_dumps_total 3"));
}

TEST_F(DaemonMetricsTest, WithoutTls_ShowsNoCertificate) {
  EXPECT_THAT(Text(), AllOf(Not(HasSubstr("weft_certificate")), HasSubstr("weft_insecure 0")));
}

TEST(DaemonMetrics, InsecureWithoutReloads_ShowsThat) {
  Metrics metrics;
  const DaemonLog log("test", LogSeverity::kError);
  SecurityFlags security;
  security.insecure = true;
  DaemonMetrics shown(&metrics, {&log, nullptr, [] { return 0; }}, security);
  shown.Refresh();
  EXPECT_THAT(metrics.Text(), AllOf(HasSubstr("weft_insecure 1"), Not(HasSubstr("weft_config"))));
}

TEST(Histogram, RaisedToCountsThatAreKeptElsewhere_ShowsThem) {
  Metrics metrics;
  Histogram histogram = metrics.AddHistogram("weft_wait_seconds", "Waits.", {1, 10});
  histogram.RaiseTo({2, 1, 0}, 7);
  histogram.RaiseTo({2, 3, 1}, 47.5);
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr("weft_wait_seconds_bucket{le=\"1\"} 2"),
                    HasSubstr("weft_wait_seconds_bucket{le=\"10\"} 5"),
                    HasSubstr("weft_wait_seconds_bucket{le=\"+Inf\"} 6"),
                    HasSubstr("weft_wait_seconds_sum 47.5"), HasSubstr("weft_wait_seconds_count 6")));
}

}  // namespace
}  // namespace weft::daemon_metrics_test
