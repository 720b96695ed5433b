// The search for patterns, against published answers and against trying all starts.
#include "planner/least_period.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "planner/pattern_check.h"
#include "planner/pipedream.h"
#include "planner/placement_search.h"
#include "planner/smallest_peak.h"
#include "tests/unit/planner_instances.h"

namespace weft::least_period_test {
namespace {

// The least period of a micro-batch in units of time, 0 where nothing fits. Every answer is checked and must
// be proven.
double LeastOf(const PlannedChain& chain, int batches = 1, bool contiguous = false) {
  EXPECT_TRUE(CheckChain(chain).ok()) << CheckChain(chain);
  const PlacementSearchResult result = FindPlacement(chain, {batches, contiguous});
  if (!result.best.has_value()) {
    EXPECT_EQ(result.lower_bound, kNoPeriod);
    return 0;
  }
  EXPECT_TRUE(result.proven());
  const absl::Status sound = CheckPattern(result.best->placed.problem, result.best->pattern);
  EXPECT_TRUE(sound.ok()) << sound;
  return static_cast<double>(result.best->pattern.period) / kUnit / batches;
}

struct Entry {
  int64_t memory;
  double period;  // 0: nothing fits
};

void ExpectTable(PlannedChain chain, const std::vector<Entry>& table, bool contiguous = false) {
  for (const Entry& entry : table) {
    chain.memory = entry.memory;
    EXPECT_DOUBLE_EQ(LeastOf(chain, 1, contiguous), entry.period) << "memory " << entry.memory;
  }
}

TEST(LeastPeriod, UnitChainWithoutMemory_IsTwoApartAndThreeInARow) {
  EXPECT_EQ(LeastOf(WorkChain({1 * kUnit, 2 * kUnit, 1 * kUnit}, {}, 2)), 2);
  EXPECT_EQ(LeastOf(WorkChain({1 * kUnit, 2 * kUnit, 1 * kUnit}, {}, 2), 1, true), 3);
}

TEST(LeastPeriod, TheoremsFamily_IsKApartAndAlmostTwiceAsLongInARow) {
  for (int k = 2; k <= 6; ++k) {
    const PlannedChain chain = TheoremChain(k);
    const int unit = 2 * k + 1;
    EXPECT_EQ(FindPlacement(chain, {}).best->pattern.period, k * unit) << k;
    const PlacementSearchResult contiguous = FindPlacement(chain, {1, true});
    EXPECT_TRUE(contiguous.proven());
    EXPECT_EQ(contiguous.best->pattern.period, (2 * k - 1) * unit + 1) << k;
  }
}

TEST(LeastPeriod, WeightsThatFitOnlyApart_AreApart) {
  const auto chain = [](int copies, int64_t memory) {
    return WorkChain({kUnit, kUnit, kUnit}, {copies, 2 * copies, copies}, 2, memory);
  };
  EXPECT_EQ(LeastOf(chain(1, 2), 1, true), 0);
  EXPECT_EQ(LeastOf(chain(1, 2)), 2);
  EXPECT_EQ(LeastOf(chain(3, 6)), 2);
  EXPECT_EQ(LeastOf(chain(3, 5)), 0);
}

TEST(LeastPeriod, LargeWeightsBesideLongLayers_ArePaired) {
  const std::vector<int> work = {1 * kUnit, 1 * kUnit, 5 * kUnit, 5 * kUnit, 5 * kUnit};
  EXPECT_EQ(LeastOf(WorkChain(work, {2, 2, 3, 1, 1}, 4, 3)), 6);
  EXPECT_EQ(LeastOf(WorkChain(work, {2, 2, 3, 1, 1}, 4, 3), 1, true), 10);
}

TEST(LeastPeriod, FourRanksWithFourBytes_IsEightAndWithTwoBatchesSix) {
  PlannedChain chain = KeptChain({3, 2, 2, 2}, {1, 2, 2, 4}, 4, 4);
  EXPECT_EQ(LeastOf(chain), 8);
  EXPECT_EQ(LeastOf(chain, 2), 6);
  chain.memory = kUnlimitedBytes;
  EXPECT_EQ(LeastOf(chain), 6);
}

TEST(LeastPeriod, TwoRanksWithSixBytes_IsFiveAndWithTwoBatchesFour) {
  PlannedChain chain = KeptChain({1, 2, 1}, {2, 3, 2}, 2);
  ExpectTable(chain, {{6, 5}, {7, 5}, {8, 4}});
  ExpectTable(chain, {{6, 6}}, /*contiguous=*/true);
  chain.memory = 6;
  EXPECT_EQ(LeastOf(chain, 2), 4);
}

TEST(LeastPeriod, ThreeLayers_FollowsThePublishedTable) {
  const PlannedChain chain = CountedChain({1, 2, 1}, {2, 3, 2}, {}, 0, 2, 0);
  ExpectTable(chain, {{9, 0}, {10, 8}, {14, 8}, {15, 6}, {20, 6}, {21, 4}, {30, 4}});
  ExpectTable(chain, {{10, 8}, {14, 8}, {18, 6}, {24, 6}}, /*contiguous=*/true);
}

TEST(LeastPeriod, ThreeLayersWithSlowLinks_FollowsThePublishedTable) {
  ExpectTable(CountedChain({1, 2, 1}, {2, 3, 2}, {}, 0, 2, kUnit / 2),
              {{9, 0}, {10, 8}, {14, 8}, {15, 6}, {20, 6}, {21, 5}, {30, 5}});
}

TEST(LeastPeriod, ThreeLayersWithWeights_FollowsThePublishedTable) {
  ExpectTable(CountedChain({1, 2, 1}, {1, 1, 1}, {1, 2, 1}, 0, 2, 0), {{12, 0}, {13, 8}, {14, 6}, {16, 4}});
}

TEST(LeastPeriod, FourLayersOnFourRanks_FollowsThePublishedTable) {
  ExpectTable(CountedChain({3, 2, 2, 2}, {1, 2, 2, 4}, {}, 0, 4, 0),
              {{14, 10}, {16, 8}, {18, 8}, {20, 8}, {24, 6}});
}

TEST(LeastPeriod, TwoLayersWithALink_FollowsThePublishedTable) {
  ExpectTable(CountedChain({1, 1}, {1, 1}, {}, 1, 2, kUnit), {{3, 0}, {4, 4}, {6, 4}, {7, 2}, {9, 2}});
}

TEST(LeastPeriod, OneRank_HasNoTransfers) {
  for (const int64_t ticks : {kUnit, 4 * kUnit}) {
    ExpectTable(CountedChain({1, 1}, {1, 1}, {}, 1, 1, ticks), {{3, 0}, {4, 4}, {9, 4}});
  }
}

TEST(LeastPeriod, NodesRunOut_LeavesAPatternAndAnHonestBound) {
  PlacementSearchOptions options;
  options.limits.nodes = 1;
  const PlannedChain chain = KeptChain({3, 2, 2, 2}, {1, 2, 2, 4}, 4, 4);
  const PlacementSearchResult result = FindPlacement(chain, options);
  ASSERT_TRUE(result.best.has_value());
  EXPECT_TRUE(CheckPattern(result.best->placed.problem, result.best->pattern).ok());
  EXPECT_LE(result.lower_bound, 8 * kUnit);
  EXPECT_GE(result.best->pattern.period, 8 * kUnit);
}

TEST(LeastPeriod, NodesRunOutOnRandomChains_NeverProveTooMuch) {
  uint64_t state = 11;
  const auto draw = [&](int from, int to) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state >> 33) % (to - from + 1));
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<int> times, kept;
    for (int l = 0; l < 4; ++l) {
      times.push_back(draw(1, 6));
      kept.push_back(draw(1, 4));
    }
    PlannedChain chain = KeptChain(times, kept, 2);
    chain.memory = LeastMemoryThatFits(chain, {}) + draw(0, 3);
    const int64_t best = FindPlacement(chain, {}).best->pattern.period;
    for (const int64_t nodes : {1, 2, 4}) {
      PlacementSearchOptions options;
      options.limits.nodes = nodes;
      EXPECT_LE(FindPlacement(chain, options).lower_bound, best) << "round " << round << ", nodes " << nodes;
    }
  }
}

TEST(LeastPeriod, Stopped_KeepsTheContiguousPattern) {
  PlacementSearchOptions options;
  options.limits.stop = [] { return true; };
  const PlacementSearchResult result = FindPlacement(KeptChain({3, 2, 2, 2}, {1, 2, 2, 4}, 4, 4), options);
  ASSERT_TRUE(result.best.has_value());
  EXPECT_FALSE(result.proven());
  EXPECT_TRUE(CheckPattern(result.best->placed.problem, result.best->pattern).ok());
}

// A large window is hard to search. That of one micro-batch, repeated, is a pattern of it too.
TEST(LeastPeriod, WindowOfSeveralWithoutTime_IsThePatternOfOneRepeated) {
  const PlannedChain chain = KeptChain({3, 2, 2, 2, 3, 1}, {1, 2, 2, 4, 1, 2}, 3, 9);
  const PlacementSearchResult single = FindPlacement(chain, {});
  ASSERT_TRUE(single.proven());
  for (const int batches : {2, 3}) {
    PlacementSearchOptions options{batches};
    options.limits.stop = [] { return true; };
    const PlacementSearchResult alone = FindPlacement(chain, options);
    options.stop_single = [] { return false; };
    const PlacementSearchResult result = FindPlacement(chain, options);
    ASSERT_TRUE(result.best.has_value());
    EXPECT_EQ(result.best->pattern.period, batches * single.best->pattern.period);
    EXPECT_EQ(result.best->placement, single.best->placement);
    const absl::Status sound = CheckPattern(result.best->placed.problem, result.best->pattern);
    EXPECT_TRUE(sound.ok()) << sound;
    ASSERT_TRUE(alone.best.has_value());
    EXPECT_GT(alone.best->pattern.period, result.best->pattern.period);
  }
}

TEST(LeastMemory, ThatFits_IsWhereThePublishedTablesBegin) {
  EXPECT_EQ(LeastMemoryThatFits(CountedChain({1, 2, 1}, {2, 3, 2}, {}, 0, 2, 0), {}), 10);
  EXPECT_EQ(LeastMemoryThatFits(CountedChain({1, 2, 1}, {1, 1, 1}, {1, 2, 1}, 0, 2, 0), {}), 13);
  EXPECT_EQ(LeastMemoryThatFits(CountedChain({1, 1}, {1, 1}, {}, 1, 2, kUnit), {}), 4);
}

TEST(LeastPeriod, RankOfHalfTheSpeed_HasHalfTheLayers) {
  PlannedChain chain = KeptChain({1, 1, 1}, {1, 1, 1}, 2);
  chain.speeds = {0.5, 1};
  EXPECT_EQ(LeastOf(chain), 4);
  const PlacementSearchResult result = FindPlacement(chain, {});
  EXPECT_EQ(std::count(result.best->placement.begin(), result.best->placement.end(), 0), 1);
  EXPECT_EQ(FindContiguousPlan(chain, /*replicated=*/false)->period, 4 * kUnit);
  chain.speeds = {0.1, 1};
  EXPECT_EQ(LeastOf(chain), 6);  // all on the fast one
}

TEST(LeastPeriod, SlowLinkBetweenNodes_IsCrossedNowhereOrByTheLeast) {
  PlannedChain chain = KeptChain({2, 2, 2, 2}, {1, 1, 1, 1}, 3);
  chain.node = {0, 1, 1};
  for (ChainLayer& layer : chain.layers) layer.transfer_between = 12 * kUnit;
  EXPECT_EQ(LeastOf(chain), 8);  // on the two ranks of a node; 6 needs three ranks
  chain.layers[0].transfer_between = kUnit;
  EXPECT_EQ(LeastOf(chain), 8);
  chain.layers[0].forward = 3 * kUnit;
  EXPECT_EQ(LeastOf(chain), 8);  // the first layer alone on its node
}

TEST(LeastPeriod, WithoutAList_FindsWhatExactSearchFinds) {
  uint64_t state = 3;
  const auto draw = [&](int from, int to) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state >> 33) % (to - from + 1));
  };
  double gaps = 0;
  constexpr int kChains = 25;
  for (int round = 0; round < kChains; ++round) {
    std::vector<int> times, kept;
    for (int l = 0; l < 6; ++l) {
      times.push_back(draw(1, 9));
      kept.push_back(draw(1, 5));
    }
    PlannedChain chain = KeptChain(times, kept, draw(2, 3));
    for (ChainLayer& layer : chain.layers) layer.resident = draw(0, 5);
    chain.memory = LeastMemoryThatFits(chain, {}) + draw(0, 4);
    const PlacementSearchResult exact = FindPlacement(chain, {});
    ASSERT_TRUE(exact.proven()) << round;
    PlacementSearchOptions options;
    options.listed = 0;
    const PlacementSearchResult found = FindPlacement(chain, options);
    ASSERT_TRUE(found.best.has_value()) << round;
    EXPECT_TRUE(CheckPattern(found.best->placed.problem, found.best->pattern).ok());
    EXPECT_GE(found.best->pattern.period, exact.best->pattern.period);
    EXPECT_LE(found.lower_bound, exact.best->pattern.period);
    gaps +=
        static_cast<double>(found.best->pattern.period) / static_cast<double>(exact.best->pattern.period) - 1;
  }
  EXPECT_LE(gaps / kChains, 0.01);
}

TEST(FindSmallestPeak, PublishedChains_NeedTheirPublishedMemory) {
  const auto least = [](const PlannedChain& chain, const Placement& placement, int64_t period) {
    const PatternProblem problem = PlaceChain(chain, placement, 1).problem;
    const SmallestPeak found = FindSmallestPeak(problem, period);
    EXPECT_TRUE(found.proven());
    EXPECT_TRUE(CheckPattern(problem, *found.pattern).ok());
    return found.bytes;
  };
  const PlannedChain four = KeptChain({3, 2, 2, 2}, {1, 2, 2, 4}, 4);
  EXPECT_EQ(least(four, {0, 1, 2, 3}, 8 * kUnit), 4);
  EXPECT_EQ(least(four, {0, 1, 2, 3}, 8 * kUnit - 1), 6);
  EXPECT_EQ(least(four, {0, 1, 2, 3}, 6 * kUnit), 6);
  const PlannedChain three = KeptChain({1, 2, 1}, {2, 3, 2}, 2);
  EXPECT_EQ(least(three, {0, 1, 0}, 5 * kUnit), 6);
  EXPECT_EQ(least(three, {0, 1, 0}, 4 * kUnit), 8);
}

TEST(FindSmallestPeak, PeriodTooShortOrTooLittleAllowed_FindsNone) {
  const PatternProblem problem = PlaceChain(KeptChain({1, 2, 1}, {2, 3, 2}, 2), {0, 1, 0}, 1).problem;
  EXPECT_FALSE(FindSmallestPeak(problem, 4 * kUnit - 1).pattern.has_value());
  EXPECT_FALSE(FindSmallestPeak(problem, 4 * kUnit, {}, 7).pattern.has_value());
  EXPECT_EQ(FindSmallestPeak(problem, 4 * kUnit, {}, 7).lower_bound, 8);
}

// Every start within a window of the one before it, in turn: the last word on small problems.
class AllStarts {
 public:
  AllStarts(const PatternProblem& problem, int64_t period)
      : problem_(problem), pattern_{period, std::vector<int64_t>(problem.tasks.size(), 0)} {}
  bool Any(size_t task = 0) {
    if (task == problem_.tasks.size()) return CheckPattern(problem_, pattern_).ok();
    int64_t earliest = 0;
    if (problem_.FollowsPrevious(static_cast<int>(task))) {
      const PatternTask& before = problem_.tasks[task - 1];
      earliest = pattern_.starts[task - 1] + before.duration + before.lag;
    }
    const int64_t most = task == 0 ? 1 : pattern_.period;
    for (int64_t wait = 0; wait < most; ++wait) {
      pattern_.starts[task] = earliest + wait;
      if (Any(task + 1)) return true;
    }
    return false;
  }

 private:
  const PatternProblem& problem_;
  Pattern pattern_;
};

TEST(FindPattern, RandomSmallChains_AgreeWithTryingAllStarts) {
  uint64_t state = 7;
  const auto draw = [&](int from, int to) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state >> 33) % (to - from + 1));
  };
  int found = 0, impossible = 0;
  for (int round = 0; round < 120; ++round) {
    PlannedChain chain;
    chain.ranks = draw(1, 2);
    chain.count = draw(0, 1) == 0 ? MemoryCount::kKeptActivations : MemoryCount::kAllTensors;
    chain.links = static_cast<LinkKind>(draw(0, 2));
    chain.memory = draw(3, 9);
    chain.input = 1;
    chain.latency = draw(0, 1);
    Placement placement;
    for (int l = 0; l < 2; ++l) {
      chain.layers.push_back({draw(1, 3), draw(1, 2), draw(0, 2), draw(0, 1), draw(0, 2), draw(0, 2), 0});
      placement.push_back(draw(0, chain.ranks - 1));
    }
    ASSERT_TRUE(CheckChain(chain).ok());
    const ChainPattern placed = PlaceChain(chain, placement, 1);
    ASSERT_TRUE(CheckProblem(placed.problem).ok()) << CheckProblem(placed.problem);
    const int64_t period = LoadBound(placed.problem) + draw(0, 2);
    const ShiftSearchResult result = FindPattern(placed.problem, period);
    const bool expected = AllStarts(placed.problem, period).Any();
    ASSERT_EQ(result.verdict, expected ? Verdict::kFound : Verdict::kImpossible) << "round " << round;
    (expected ? found : impossible) += 1;
    if (!expected) continue;
    const absl::Status sound = CheckPattern(placed.problem, result.pattern);
    ASSERT_TRUE(sound.ok()) << sound << " in round " << round;
    const Pattern compressed = Compressed(placed.problem, result.pattern);
    EXPECT_LE(compressed.period, period);
    EXPECT_TRUE(CheckPattern(placed.problem, compressed).ok());
  }
  EXPECT_GE(found, 20);
  EXPECT_GE(impossible, 20);
}

TEST(PackedPattern, AnyLinks_OverlapsNothing) {
  for (const LinkKind links : {LinkKind::kPairFull, LinkKind::kPairHalf, LinkKind::kPort}) {
    PlannedChain chain = CountedChain({1, 3, 2, 1}, {1, 1, 1, 1}, {}, 0, 3, kUnit);
    chain.links = links;
    const ChainPattern placed = PlaceChain(chain, {0, 1, 2, 0}, 2);
    const absl::Status sound = CheckPattern(placed.problem, PackedPattern(placed.problem));
    EXPECT_TRUE(sound.ok()) << sound;
  }
}

}  // namespace
}  // namespace weft::least_period_test
