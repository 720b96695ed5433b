#include "client/files/measured_network.h"

#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/files/network_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::measured_network_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Transfers of two sizes, one after the other, over a link with this latency and bandwidth.
void Send(Rank from, Rank to, double latency, double bandwidth, std::vector<DrawnTransfer>* transfers) {
  for (const double bytes : {1e4, 1e6}) {
    DrawnTransfer t;
    t.from = from;
    t.to = to;
    t.bytes = bytes;
    t.start = transfers->empty() ? 0 : transfers->back().end;
    t.end = t.start + latency + bytes / bandwidth;
    transfers->push_back(t);
  }
}

TEST(JoinNearSpeeds, SpeedsWithinAFewPercent_AreTheSlowest) {
  using ::testing::ElementsAre;
  EXPECT_THAT(JoinNearSpeeds({0.956, 1}), ElementsAre(0.956, 0.956));
  EXPECT_THAT(JoinNearSpeeds({1, 0.94}), ElementsAre(1, 0.94));
  EXPECT_THAT(JoinNearSpeeds({0.5, 1, 0.52, 0.98}), ElementsAre(0.5, 0.98, 0.5, 0.98));
  // No two ranks differ by more than was measured, unless by so much as counts.
  EXPECT_THAT(JoinNearSpeeds({1, 0.97, 0.94, 0.6}), ElementsAre(0.94, 0.94, 0.94, 0.6));
  EXPECT_TRUE(JoinNearSpeeds({}).empty());
}

TEST(NetworkOf_TwoNodes, LinksInsideAndBetweenAreToldApart) {
  std::vector<DrawnTransfer> transfers;
  Send(0, 1, 1e-5, 1e10, &transfers);
  Send(2, 3, 1e-5, 1e10, &transfers);
  Send(1, 2, 2e-4, 1e9, &transfers);
  Send(3, 0, 2e-4, 1e9, &transfers);
  Send(2, 1, 2e-4, 1e9, &transfers);
  MeasuredNetwork network = NetworkOf({"a", "a", "b", "b"}, BurstsOf(transfers));
  EXPECT_NEAR(network.inside.bandwidth, 1e10, 1e7);
  EXPECT_NEAR(network.between.bandwidth, 1e9, 1e6);
  EXPECT_NEAR(network.between.latency, 2e-4, 1e-6);
  ASSERT_EQ(network.pairs.size(), 4u) << "both directions are one pair";
  EXPECT_EQ(network.pairs[1].a, 0);
  EXPECT_EQ(network.pairs[1].b, 3);
  EXPECT_NEAR(network.pairs[1].link.bandwidth, 1e9, 1e6);

  network.speeds = {1, 1, 0.5, 0.5};
  const std::string text = NetworkText("run.yaml", network);
  EXPECT_THAT(text, HasSubstr("#   b: ranks 2 to 3\n"));
  EXPECT_THAT(text, HasSubstr("nodes: [2, 2]\n"));
  EXPECT_THAT(text, HasSubstr("#   0 and 3: bandwidth: 1e+09, latency: 0.0002\n"));
  const std::string file = ::testing::TempDir() + "/measured_network.yaml";
  std::ofstream(file) << text;
  const auto read = ReadNetworkFile(file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_NEAR(read->bandwidth, 1e10, 1e7);
  EXPECT_NEAR(read->network.bandwidth_between, 1e9, 1e6);
  EXPECT_EQ(read->network.nodes, (std::vector<int>{2, 2}));
  EXPECT_EQ(read->network.speeds, (std::vector<double>{1, 1, 0.5, 0.5}));
}

TEST(BurstsOf_Training, TransfersOfUnknownRanks_DoNotCount) {
  std::vector<DrawnTransfer> transfers;
  Send(0, 1, 1e-5, 1e10, &transfers);
  const size_t known = BurstsOf(transfers).size();
  ASSERT_EQ(known, 2u);
  DrawnTransfer unknown;
  unknown.job.stage = -1;
  unknown.end = 1;
  unknown.bytes = 1e9;
  transfers.push_back(unknown);
  EXPECT_EQ(BurstsOf(transfers).size(), known);
}

TEST(NetworkOf_OneMachine, HasOneLinkAndNoNodes) {
  std::vector<DrawnTransfer> transfers;
  Send(0, 1, 1e-5, 1e10, &transfers);
  MeasuredNetwork network = NetworkOf({}, BurstsOf(transfers));
  network.speeds = {1, 1};
  EXPECT_THAT(NetworkText("run.yaml", network), Not(HasSubstr("nodes")));
  network.node_of_rank = {"a", "a"};
  EXPECT_THAT(NetworkText("run.yaml", network), Not(HasSubstr("nodes")));
}

TEST(RingsOf_AnyRanks, EachPairIsMeasuredUpToSixteenAndASampleBeyond) {
  for (const int layers : {2, 4, 6, 40}) {
    for (int ranks = 2; ranks <= 16; ++ranks) {
      std::set<std::pair<Rank, Rank>> pairs;
      for (const RankRing& ring : RingsOf(ranks, layers)) {
        for (int s = 0; s < layers; ++s) {
          const Rank a = (s + ring.first) % ranks, b = (s + ring.first + ring.shift) % ranks;
          pairs.insert(std::minmax(a, b));
        }
      }
      EXPECT_EQ(pairs.size(), static_cast<size_t>(ranks * (ranks - 1) / 2)) << ranks << " " << layers;
    }
  }
  std::vector<int> shifts;
  for (const RankRing& ring : RingsOf(24, 40)) shifts.push_back(ring.shift);
  EXPECT_EQ(shifts, (std::vector<int>{1, 2, 4, 8, 12}));
}

}  // namespace
}  // namespace weft::measured_network_test
