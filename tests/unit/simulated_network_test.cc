// Networks of a simulation: what transfers share, nodes, and ranks of unequal speed, against times by hand.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/simulated_family.h"
#include "tests/unit/without_terms.h"

namespace weft::simulated_network_test {
namespace {

using ::testing::HasSubstr;

SimulationResult Simulated(const Schedule& schedule, const SimulationOptions& options) {
  auto run = Simulate(Graph(WithoutTerms(schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

// One stage on each of n ranks: a forward and a backward of 1, then every rank sends a slice of the gradient
// to each other one, and a slice of the new weights. 40 bytes on links of 10 a unit of time.
double DdpWith(int n, LinkSharing links) {
  SimulationOptions options;
  options.weight = {40};
  options.bandwidth = 10;
  options.network.links = links;
  return Simulated(*MakeSchedule("ddp", {}, 1, n), options).makespan;
}

TEST(Network, AllReduceOfDdp_TakesWhatItsLinksShare) {
  // Each of the two rounds moves a slice of 40 / n bytes over each pair, in each direction.
  EXPECT_DOUBLE_EQ(DdpWith(2, LinkSharing::kPairFull), 2 + 2 * 2);
  EXPECT_DOUBLE_EQ(DdpWith(4, LinkSharing::kPairFull), 2 + 2 * 1);
  EXPECT_DOUBLE_EQ(DdpWith(8, LinkSharing::kPairFull), 2 + 2 * 0.5) << "ever cheaper";
  EXPECT_DOUBLE_EQ(DdpWith(2, LinkSharing::kPairHalf), 2 + 4 * 2);
  EXPECT_DOUBLE_EQ(DdpWith(4, LinkSharing::kPairHalf), 2 + 4 * 1);
  // A port sends n - 1 slices a round.
  EXPECT_DOUBLE_EQ(DdpWith(2, LinkSharing::kPort), 2 + 2 * 2);
  for (const int n : {3, 4, 8}) {
    EXPECT_GE(DdpWith(n, LinkSharing::kPort), 2 + 2 * (n - 1) * 40.0 / n / 10) << n << " ranks";
  }
}

TEST(Network, TransfersBetweenNodes_ShareTheNodesLink) {
  SimulationOptions options;
  options.weight = {40};
  options.network.nodes = {2, 2};
  const Schedule ddp = *MakeSchedule("ddp", {}, 1, 4);
  EXPECT_DOUBLE_EQ(Simulated(ddp, options).makespan, 2) << "all links are infinitely fast";
  // In each round two ranks send slices of 10 bytes to two others, over one link in each direction.
  options.network.bandwidth_between = 10;
  EXPECT_DOUBLE_EQ(Simulated(ddp, options).makespan, 2 + 2 * 4);
  options.network.links = LinkSharing::kPairHalf;
  EXPECT_DOUBLE_EQ(Simulated(ddp, options).makespan, 2 + 2 * 8);
}

TEST(Network, LatencyBetweenNodes_CountsBetweenNodesOnly) {
  SimulationOptions options;
  options.network.latency_between = 3;
  const Schedule pipeline = *MakeSchedule("gpipe", {}, 4, 1);
  options.network.nodes = {4};
  EXPECT_DOUBLE_EQ(Simulated(pipeline, options).makespan, 8);
  options.network.nodes = {2, 2};
  EXPECT_DOUBLE_EQ(Simulated(pipeline, options).makespan, 8 + 2 * 3);
  options.network.nodes = {1, 1, 1, 1};
  options.latency = 100;
  EXPECT_DOUBLE_EQ(Simulated(pipeline, options).makespan, 8 + 6 * 3) << "no transfer stays inside a node";
}

TEST(Network, PairOfItsOwn_IsSlowInBothDirections) {
  SimulationOptions options;
  const Schedule pipeline = *MakeSchedule("gpipe", {}, 3, 1);
  options.network.pairs = {{2, 1, 0, 5}};
  EXPECT_DOUBLE_EQ(Simulated(pipeline, options).makespan, 6 + 2 * 5);
  options.output = {10};
  options.network.pairs = {{1, 2, 5, 1}};
  EXPECT_DOUBLE_EQ(Simulated(pipeline, options).makespan, 6 + 2 * (10.0 / 5 + 1));
  options.latency = 100;
  options.network.pairs.push_back({0, 1, 0, 3});
  EXPECT_DOUBLE_EQ(Simulated(pipeline, options).makespan, 6 + 2 * 3 + 2 * 3) << "no link is as the others";
  options.network.pairs = {{0, 3, 1, 1}};
  EXPECT_THAT(std::string(Simulate(Graph(WithoutTerms(pipeline)), options).status().message()),
              HasSubstr("ranks 0 and 3 of 3 have no link"));
}

// The pass over fixed orders without events knows no speeds.
TEST(Network, SlowRank_TakesLongerForEachJob) {
  SimulationOptions options;
  options.network.speeds = {1, 0.5, 1, 1};
  const SimulationResult ddp = Simulated(*MakeSchedule("ddp", {}, 1, 4), options);
  EXPECT_DOUBLE_EQ(ddp.makespan, 4);
  EXPECT_DOUBLE_EQ(ddp.ranks[0].busy, 2);
  EXPECT_DOUBLE_EQ(ddp.ranks[1].busy, 4);
  const SimulationResult zb = Simulated(*MakeSchedule("zb_h1", {}, 4, 8), options);
  EXPECT_DOUBLE_EQ(zb.ranks[0].busy, 24);
  EXPECT_DOUBLE_EQ(zb.ranks[1].busy, 48);
}

TEST(Network, FirstRanks_HaveTheirSpeedsNodesAndLinks) {
  Network network;
  network.speeds = {1, 0.5, 2, 4};
  network.nodes = {2, 2};
  network.pairs = {{0, 1, 10, 0}, {1, 3, 10, 0}};
  const Network first = network.FirstRanks(3);
  EXPECT_EQ(first.speeds, std::vector<double>({1, 0.5, 2}));
  EXPECT_EQ(first.nodes, std::vector<int>({2, 1}));
  EXPECT_EQ(first.pairs.size(), 1u);
  EXPECT_TRUE(CheckNetwork(first, 3).ok());
  EXPECT_EQ(network.FirstRanks(2).nodes, std::vector<int>({2}));
  EXPECT_EQ(network.FirstRanks(5).speeds, network.speeds) << "it has no more";
  EXPECT_EQ(network.FirstRanks(5).nodes, network.nodes);
}

TEST(Network, OfOtherRanksOrWithFiguresThatAreNone_IsRefused) {
  const auto refusal = [](const Network& network) {
    SimulationOptions options;
    options.network = network;
    const auto run = Simulate(Graph(WithoutTerms(*MakeSchedule("gpipe", {}, 4, 4))), options);
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(run.status().message());
  };
  Network nodes, empty, between, speeds, stopped;
  nodes.nodes = {2, 1};
  EXPECT_THAT(refusal(nodes), HasSubstr("the nodes have 3 ranks together; the schedule has 4"));
  empty.nodes = {4, 0};
  EXPECT_THAT(refusal(empty), HasSubstr("a node has 0 ranks"));
  between.bandwidth_between = -1;
  EXPECT_THAT(refusal(between), HasSubstr("-1 is not a finite number"));
  speeds.speeds = {1, 1};
  EXPECT_THAT(refusal(speeds), HasSubstr("there are 2; the schedule has 4 ranks"));
  stopped.speeds = {1, 1, 0, 1};
  EXPECT_THAT(refusal(stopped), HasSubstr("0 is no speed"));
}

}  // namespace
}  // namespace weft::simulated_network_test
