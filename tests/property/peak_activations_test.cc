// The most activations that are alive on a rank: where the rules of the schedule decide it, whatever jobs and
// transfers last, and where not.
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/property/random_case.h"
#include "tests/unit/without_terms.h"

namespace weft::peak_activations_test {
namespace {

// Uneven on purpose: some stages and kinds take a hundred times as long as others.
SimulationOptions UnevenDurations(std::mt19937_64& rng, int stages, int steps) {
  SimulationOptions options;
  options.steps = steps;
  for (auto& duration : options.duration) {
    duration.clear();
    for (int s = 0; s < stages; ++s) {
      const double size = rng() % 3 == 0 ? 100 : 1;
      duration.push_back(size * static_cast<double>(1 + rng() % 9));
    }
  }
  options.latency = rng() % 2 == 0 ? 0 : static_cast<double>(rng() % 200);
  options.bandwidth = rng() % 2 == 0 ? 0 : 1;
  options.output = options.weight = {static_cast<double>(rng() % 100)};
  return options;
}

// Returns by rank every number that comes up.
std::vector<std::set<int>> Peaks(const Schedule& schedule, uint64_t seed, int runs) {
  std::mt19937_64 rng(seed);
  const Graph graph(WithoutTerms(schedule));
  std::vector<std::set<int>> peaks(schedule.ranks);
  for (int i = 0; i < runs; ++i) {
    const auto run = Simulate(graph, UnevenDurations(rng, schedule.stages, 1 + i % 3));
    EXPECT_TRUE(run.ok()) << run.status();
    for (Rank r = 0; r < schedule.ranks; ++r) peaks[r].insert(run->ranks[r].peak_activations);
  }
  return peaks;
}

TEST(PeakActivations, FixedOrders_AreTheSameForAnyDurations) {
  int fixed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const RandomCase c = DrawCase(seed);
    if (c.schedule.scheme.order.empty()) continue;
    ++fixed;
    SCOPED_TRACE(c.text);
    const auto equal_times = Simulate(Graph(c.schedule), {});
    const auto peaks = Peaks(c.schedule.scheme, seed, 8);
    for (Rank r = 0; r < c.schedule.scheme.ranks; ++r) {
      ASSERT_EQ(peaks[r], std::set<int>{equal_times->ranks[r].peak_activations}) << "rank " << r;
    }
  }
  EXPECT_GT(fixed, 50);
}

// A rank whose jobs never wait for another rank within a step, and the ends of pipelines.
TEST(PeakActivations, GreedyRanksThatWaitForNobody_AreTheSameForAnyDurations) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 rng(seed);
    const int stages = 1 + static_cast<int>(rng() % 6), microbatches = 1 + static_cast<int>(rng() % 12);
    SCOPED_TRACE(absl::StrCat("S=", stages, " B=", microbatches));
    const auto peaks = [&](const std::string& name,
                           const std::map<std::string, std::string>& parameters = {}) {
      return Peaks(*MakeSchedule(name, parameters, stages, microbatches), seed, 8);
    };
    for (const auto& rank : peaks("ddp")) ASSERT_EQ(rank, std::set<int>{stages});
    for (const auto& rank : peaks("fsdp")) ASSERT_EQ(rank, std::set<int>{stages});
    for (const auto& rank : peaks("fsdp", {{"shard", "width"}})) ASSERT_EQ(rank, std::set<int>{stages});
    // Rings of one rank, among them gradient accumulation: all forwards of its micro-batches, then the
    // backwards.
    const int groups = 1 + static_cast<int>(rng() % microbatches);
    const auto rings = peaks("lpp", {{"groups", absl::StrCat(groups)}, {"ranks", "1"}});
    for (int r = 0; r < groups; ++r) {
      const int forwards = stages * ((microbatches - r + groups - 1) / groups);
      ASSERT_EQ(rings[r], std::set<int>{forwards}) << groups << " groups";
    }
    ASSERT_EQ(peaks("gpipe").front(), std::set<int>{microbatches});
    ASSERT_EQ(peaks("1f1b").back(), std::set<int>{1});
  }
}

// Elsewhere durations do decide: a rank that waits for one job goes on with another.
TEST(PeakActivations, OtherGreedyRanks_DependOnDurations) {
  const struct {
    std::string name;
    std::map<std::string, std::string> parameters;
    int from, to;  // ranks
  } cases[] = {{"gpipe", {}, 1, 4},
               {"1f1b", {}, 0, 3},
               {"lpp", {{"groups", "2"}, {"ranks", "2"}}, 0, 4},
               {"fslpp", {{"groups", "2"}, {"ranks", "2"}}, 0, 4},
               {"depth_first", {{"ranks", "2"}}, 0, 2},
               {"breadth_first", {{"ranks", "2"}}, 1, 2}};
  for (const auto& c : cases) {
    const Schedule schedule = *MakeSchedule(c.name, c.parameters, 4, 8);
    const auto peaks = Peaks(schedule, 1, 300);
    for (int r = c.from; r < c.to; ++r) EXPECT_GT(peaks[r].size(), 1u) << c.name << ", rank " << r;
  }
}

}  // namespace
}  // namespace weft::peak_activations_test
