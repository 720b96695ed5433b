#include "worker/shell/cuda/device_clock.h"

#include <gtest/gtest.h>

namespace weft::device_clock_test {
namespace {

constexpr double kMs = 1e6;  // nanoseconds

TEST(DeviceClock, ClocksThatAgree_GiveTheDevicesTimes) {
  DeviceClock clock;
  const DeviceClock::Span span = clock.Map(1000 * kMs, 5, 7, 1004 * kMs, 1008 * kMs);
  EXPECT_EQ(span.start_ns, 1005 * kMs);
  EXPECT_EQ(span.end_ns, 1007 * kMs);
  EXPECT_EQ(clock.shift_ns(), 0);
}

TEST(DeviceClock, EndAfterItWasSeen_MovesTheDeviceBack) {
  DeviceClock clock;
  const DeviceClock::Span span = clock.Map(0, 5, 7, 3 * kMs, 6 * kMs);
  EXPECT_EQ(span.end_ns, 6 * kMs);
  EXPECT_EQ(span.start_ns, 4 * kMs);
  // The move holds for later spans, too.
  EXPECT_EQ(clock.Map(0, 10, 11, 8 * kMs, 20 * kMs).end_ns, 10 * kMs);
}

TEST(DeviceClock, StartBeforeItWasGiven_MovesTheDeviceOn) {
  DeviceClock clock;
  const DeviceClock::Span span = clock.Map(0, 5, 7, 6 * kMs, 20 * kMs);
  EXPECT_EQ(span.start_ns, 6 * kMs);
  EXPECT_EQ(span.end_ns, 8 * kMs);
  EXPECT_EQ(clock.Map(0, 10, 11, 8 * kMs, 20 * kMs).start_ns, 11 * kMs);
}

TEST(DeviceClock, SpanLongerThanTheHosts_StaysWithinIt) {
  DeviceClock clock;
  const DeviceClock::Span span = clock.Map(0, 5, 7, 5 * kMs, 6 * kMs);
  EXPECT_EQ(span.start_ns, 5 * kMs);
  EXPECT_EQ(span.end_ns, 6 * kMs);
}

TEST(DeviceClock, ClocksThatDriftApart_StayWithinWhatWasSeen) {
  // The device's clock is 50 ppm fast; the host looks 20 us after a job's end and gives the next one then.
  DeviceClock clock;
  int64_t now = 0;
  for (int job = 0; job < 100000; ++job) {
    const int64_t given = now, end = given + 300000, seen = end + 20000;
    const DeviceClock::Span span = clock.Map(0, static_cast<double>(given) * 1.00005 / kMs,
                                             static_cast<double>(end) * 1.00005 / kMs, given, seen);
    ASSERT_GE(span.start_ns, given);
    ASSERT_LE(span.end_ns, seen);
    now = seen;
  }
}

}  // namespace
}  // namespace weft::device_clock_test
