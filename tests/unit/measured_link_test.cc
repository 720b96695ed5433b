#include "client/files/measured_link.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

DrawnTransfer Transfer(double start, double end, double bytes) {
  DrawnTransfer transfer;
  transfer.start = start;
  transfer.end = end;
  transfer.bytes = bytes;
  return transfer;
}

std::vector<DrawnTransfer> Transfers(double latency, double bandwidth, const std::vector<double>& sizes) {
  std::vector<DrawnTransfer> transfers;
  transfers.reserve(sizes.size());
  for (const double bytes : sizes) transfers.push_back(Transfer(7, 7 + latency + bytes / bandwidth, bytes));
  return transfers;
}

TEST(MeasuredLink, TransfersOfALink_GiveItsLatencyAndBandwidth) {
  std::vector<DrawnTransfer> transfers = Transfers(1e-4, 1e9, {1e3, 1e3, 1e3, 1e6, 1e6, 1e6, 5e6});
  transfers.push_back(Transfer(7, 9, 1e6));  // one of four that waited for a core
  transfers.push_back(Transfer(7, 9, 0));    // its bytes are not known
  const MeasuredLink link = LinkOf(transfers);
  EXPECT_NEAR(link.latency, 1e-4, 1e-8);
  EXPECT_NEAR(link.bandwidth, 1e9, 1e4);
}

TEST(MeasuredLink, SizeDoesNotMatter_IsLatencyAlone) {
  const MeasuredLink link = LinkOf({Transfer(0, 3e-4, 1e3), Transfer(0, 1e-4, 1e6)});
  EXPECT_EQ(link.bandwidth, 0);
  EXPECT_DOUBLE_EQ(link.latency, 1.2e-4) << "the least sum of squared relative errors";
  EXPECT_EQ(LinkOf({}).latency, 0);
  EXPECT_DOUBLE_EQ(LinkOf({Transfer(0, 2e-4, 1e3)}).latency, 2e-4) << "one size tells no bandwidth";
}

// A fit in seconds gives this link a latency below zero.
TEST(MeasuredLink, LargeTensorTakesTwiceItsTime_LatencyStays) {
  std::vector<DrawnTransfer> transfers = Transfers(1e-4, 1e9, {1e3, 1e4, 1e6});
  transfers.push_back(Transfer(7, 7 + 2 * (1e-4 + 5e-3), 5e6));
  const MeasuredLink link = LinkOf(transfers);
  EXPECT_NEAR(link.latency, 1e-4, 3e-5);
  EXPECT_NEAR(link.bandwidth, 1e9, 5e8);
}

TEST(MeasuredLink, SmallTensorsAreFasterThanTheirShare_IsBandwidthAlone) {
  const MeasuredLink link = LinkOf({Transfer(0, 1e-4, 1e5), Transfer(0, 4e-4, 2e5)});
  EXPECT_EQ(link.latency, 0);
  EXPECT_DOUBLE_EQ(1 / link.bandwidth, 1.2e-9) << "the least sum of squared relative errors";
}

}  // namespace
}  // namespace weft
