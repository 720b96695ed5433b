#include "schedules/simulator/measured_link.h"

#include <vector>

#include "gtest/gtest.h"

namespace weft::measured_link_test {
namespace {

std::vector<Burst> Bursts(double latency, double bandwidth, const std::vector<double>& sizes) {
  std::vector<Burst> bursts;
  bursts.reserve(sizes.size());
  for (const double bytes : sizes) bursts.push_back({bytes, latency + bytes / bandwidth});
  return bursts;
}

TEST(MeasuredLink, TransfersOfALink_GiveItsLatencyAndBandwidth) {
  std::vector<Burst> bursts = Bursts(1e-4, 1e9, {1e3, 1e3, 1e3, 1e6, 1e6, 1e6, 5e6});
  bursts.push_back({1e6, 2});  // one of four that waited for a core
  const MeasuredLink link = LinkOf(bursts);
  EXPECT_NEAR(link.latency, 1e-4, 1e-8);
  EXPECT_NEAR(link.bandwidth, 1e9, 1e4);
  EXPECT_NEAR(link.SecondsOf(1e8), 0.1001, 1e-6) << "of a size that was not measured";
}

TEST(MeasuredLink, SizeDoesNotMatter_IsLatencyAlone) {
  const MeasuredLink link = LinkOf({{1e3, 3e-4}, {1e6, 1e-4}});
  EXPECT_EQ(link.bandwidth, 0);
  EXPECT_DOUBLE_EQ(link.latency, 1.2e-4) << "the least sum of squared relative errors";
  EXPECT_EQ(LinkOf({}).latency, 0);
}

// A line through points of nearly one size says nothing of larger tensors.
TEST(MeasuredLink, OneSize_IsBandwidthAlone) {
  for (const std::vector<Burst>& bursts :
       {std::vector<Burst>{{1e3, 2e-4}}, {{1e3, 2e-4}, {1.01e3, 2.02e-4}}, {{1e3, 2e-4}, {1e3, 2e-4}}}) {
    const MeasuredLink link = LinkOf(bursts);
    EXPECT_EQ(link.latency, 0);
    EXPECT_DOUBLE_EQ(link.bandwidth, 5e6);
  }
}

// A fit in seconds gives this link a latency below zero.
TEST(MeasuredLink, LargeTensorTakesTwiceItsTime_LatencyStays) {
  std::vector<Burst> bursts = Bursts(1e-4, 1e9, {1e3, 1e4, 1e6});
  bursts.push_back({5e6, 2 * (1e-4 + 5e-3)});
  const MeasuredLink link = LinkOf(bursts);
  EXPECT_NEAR(link.latency, 1e-4, 3e-5);
  EXPECT_NEAR(link.bandwidth, 1e9, 5e8);
}

// A size that was seen once or twice is a hiccup if others were seen more often.
TEST(MeasuredLink, SizeThatWasSeenOnce_DoesNotCountBesideTheOthers) {
  std::vector<Burst> bursts = Bursts(1e-4, 1e9, {1e3, 1e3, 1e3, 1e6, 1e6, 1e6});
  bursts.push_back({2e6, 1e-5});
  EXPECT_NEAR(LinkOf(bursts).latency, 1e-4, 1e-8);
  EXPECT_NEAR(LinkOf(bursts).bandwidth, 1e9, 1e4);
}

TEST(MeasuredLink, SmallTensorsAreFasterThanTheirShare_IsBandwidthAlone) {
  const MeasuredLink link = LinkOf({{1e5, 1e-4}, {2e5, 4e-4}});
  EXPECT_EQ(link.latency, 0);
  EXPECT_DOUBLE_EQ(1 / link.bandwidth, 1.2e-9) << "the least sum of squared relative errors";
}

TEST(BurstsOf_OneDirection, TransfersThatOverlap_AreOneOfAllTheirBytes) {
  const std::vector<Burst> bursts =
      BurstsOf({{8, 9, 100}, {1, 3, 10}, {2, 5, 20}, {2, 4, 5}, {5, 6, 40}, {7, 7, 1}, {7, 8, 0}});
  ASSERT_EQ(bursts.size(), 3u);
  EXPECT_EQ(bursts[0].bytes, 35);
  EXPECT_EQ(bursts[0].seconds, 4);
  EXPECT_EQ(bursts[1].bytes, 40) << "it left when the others had arrived";
  EXPECT_EQ(bursts[1].seconds, 1);
  EXPECT_EQ(bursts[2].bytes, 100);
}

}  // namespace
}  // namespace weft::measured_link_test
