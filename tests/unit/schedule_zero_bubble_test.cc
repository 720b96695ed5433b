// The families that split backwards, each against its published closed forms, inside and outside their
// conditions.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/simulated_family.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_zero_bubble_test {
namespace {

using ::testing::HasSubstr;

// ---- zero bubble; F, I, W are the times of forward, backward_input and backward_weight

// arXiv 2401.10241: (p-1)(F + I - W), for at least p micro-batches and W <= F, W <= I.
TEST(ZbH1, AtLeastAsManyMicrobatchesAsStages_BubbleAndMemoryAreTheClosedForms) {
  for (int p : {1, 2, 4, 8}) {
    for (int microbatches : {p, p + 3, 3 * p}) {
      for (const Times& t : {Times{1, 0, 1, 1}, Times{10, 0, 11, 9}, Times{2, 0, 3, 1}}) {
        const auto run = MustSimulate("zb_h1", {}, p, microbatches, t);
        const double work = microbatches * (t.forward + t.input + t.weight);
        EXPECT_DOUBLE_EQ(run.makespan, work + (p - 1) * (t.forward + t.input - t.weight));
        for (const RankStats& r : run.ranks) EXPECT_EQ(r.peak_activations, p);
      }
    }
  }
}

TEST(ZbH1, EqualTimes_BubbleIsAThirdOf1f1bs) {
  const double work = 16 * 3;
  const auto zero = MustSimulate("zb_h1", {}, 4, 16);
  const auto plain = MustSimulate("1f1b", {}, 4, 16);
  EXPECT_DOUBLE_EQ(3 * (zero.makespan - work), plain.makespan - work);
}

// No rank idles between its first job and its last, so step follows step without a bubble.
TEST(ZbH2, EqualTimesAndEnoughMicrobatches_NoBubble) {
  for (int p : {1, 2, 4, 8}) {
    for (int microbatches : {2 * p - 1, 2 * p, 4 * p}) {
      const auto run = MustSimulate("zb_h2", {}, p, microbatches, {}, 6);
      EXPECT_DOUBLE_EQ(run.period, 3.0 * microbatches);
      EXPECT_DOUBLE_EQ(run.makespan, 6 * 3.0 * microbatches + p - 1);  // the ranks start one after the other
      for (const RankStats& r : run.ranks) EXPECT_EQ(r.peak_activations, 2 * p - 1);
    }
  }
}

// The paper's (p-1)(F + I - 2W), where that is not negative.
TEST(ZbH2, UnequalTimes_BubbleOfAStepIsTheClosedForm) {
  for (const Times& t : {Times{10, 0, 11, 9}, Times{2, 0, 3, 1}}) {
    for (int p : {2, 4, 8}) {
      const auto run = MustSimulate("zb_h2", {}, p, 2 * p, t, 6);
      const double work = 2 * p * (t.forward + t.input + t.weight);
      EXPECT_NEAR(run.period, work + (p - 1) * (t.forward + t.input - 2 * t.weight), 1e-9);
    }
  }
}

TEST(ZbV, EqualTimesAndEnoughMicrobatches_NoBubbleWith1f1bsMemory) {
  for (int ranks : {1, 2, 4, 8}) {
    for (int microbatches : {2 * ranks - 1, 2 * ranks, 4 * ranks}) {
      const auto run = MustSimulate("zb_v", {}, 2 * ranks, microbatches, {}, 6);
      EXPECT_DOUBLE_EQ(run.period, 6.0 * microbatches);
      EXPECT_DOUBLE_EQ(run.makespan, 6 * 6.0 * microbatches + ranks - 1);
      // The stages are half as large as 1f1b's on as many ranks.
      for (const RankStats& r : run.ranks)
        EXPECT_EQ(r.peak_activations, std::min(2 * ranks, 2 * microbatches));
    }
  }
}

TEST(ZbV, FewMicrobatches_RunsWithABubble) {
  const auto run = MustSimulate("zb_v", {}, 8, 3, {}, 6);
  EXPECT_GT(run.period, 6.0 * 3);
  EXPECT_THAT(Refusal("zb_v", {}, 7, 8), HasSubstr("even number"));
}

// ---- controllable memory: activations of stages half as large as 1f1b's, of which 1f1b would hold 2W

TEST(VHalf, ManyMicrobatches_HoldsHalfOf1f1bsActivationsAndTwoMore) {
  for (int ranks : {3, 4, 6, 8, 9, 12, 16}) {
    const auto run = MustSimulate("v_half", {}, 2 * ranks, 3 * ranks);
    EXPECT_LE(MaxActivations(run), ranks + 2) << ranks;
  }
}

TEST(VMin, ManyMicrobatches_HoldsAThirdOf1f1bsActivationsAndTwoMore) {
  for (int ranks : {3, 4, 6, 8, 9, 12, 16}) {
    const auto run = MustSimulate("v_min", {}, 2 * ranks, 3 * ranks);
    EXPECT_LE(MaxActivations(run), (2 * ranks + 2) / 3 + 2) << ranks;
  }
}

// Against the pipeline of as many ranks, whose step takes (W-1) * 6 units of these half stages longer than
// its work.
TEST(ControllableMemory, EqualTimes_BubbleIsWellBelow1f1bs) {
  for (int ranks : {4, 8, 12, 16}) {
    const int microbatches = 3 * ranks;
    const double plain = 6.0 * (ranks - 1);
    const double half = MustSimulate("v_half", {}, 2 * ranks, microbatches).makespan - 6 * microbatches;
    const double least = MustSimulate("v_min", {}, 2 * ranks, microbatches).makespan - 6 * microbatches;
    EXPECT_LE(half / plain, 0.6) << ranks;
    EXPECT_LE(least / plain, 2.0 / 3) << ranks;
    EXPECT_LT(half, least);
  }
}

TEST(ControllableMemory, AnySize_OrdersAreSound) {
  for (const char* name : {"v_half", "v_min", "zb_v"}) {
    for (int ranks = 1; ranks <= 13; ++ranks) {
      for (int microbatches : {1, 2, 5, 17}) MustSimulate(name, {}, 2 * ranks, microbatches);
    }
  }
}

// ---- both directions; B is the whole backward and W its half for the weights

// (p/2 - 1)(F&B + B - 3W), for F = W = B/2, which U1's units have: the most that a rank idles.
TEST(DualPipe, EqualTimes_BubbleActivationsAndCopiesAreTheClosedForms) {
  for (int p : {2, 4, 6, 8, 16}) {
    for (int microbatches : {2 * p, 2 * p + 2, 4 * p}) {
      for (double pair : {2.0, 2.5, 3.0}) {
        SCOPED_TRACE(absl::StrCat(p, " ranks, ", microbatches, " micro-batches, a pair takes ", pair));
        const auto schedule = MakeSchedule("dualpipe", {}, p, microbatches);
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
        const Graph graph(WithoutTerms(*schedule));
        SimulationOptions options;
        options.overlapped = pair;
        options.weight = {1};
        const auto run = Simulate(graph, options);
        ASSERT_TRUE(run.ok()) << run.status();
        double idle = 0;
        for (const RankStats& r : run->ranks) {
          idle = std::max(idle, r.idle);
          EXPECT_EQ(r.peak_activations, p + 1);
          EXPECT_EQ(r.weight_fetches, 0);
        }
        EXPECT_DOUBLE_EQ(idle, (p / 2.0 - 1) * (pair + 2 - 3));
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(graph.members(s), (std::vector<Rank>{std::min(s, p - 1 - s), std::max(s, p - 1 - s)}));
        }
      }
    }
  }
}

TEST(DualPipeV, EqualTimes_BubbleAndActivationsAreTheClosedFormsOfHalfAsManyDevices) {
  for (int ranks : {1, 2, 4, 8}) {
    const int p = 2 * ranks;
    for (int microbatches : {p, p + 2, 4 * p}) {
      for (double pair : {2.0, 2.5, 3.0}) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", microbatches, " micro-batches, a pair takes ", pair));
        const auto schedule = MakeSchedule("dualpipe_v", {}, p, microbatches);
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
        const Graph graph(WithoutTerms(*schedule));
        SimulationOptions options;
        options.overlapped = pair;
        const auto run = Simulate(graph, options);
        ASSERT_TRUE(run.ok()) << run.status();
        double idle = 0;
        for (const RankStats& r : run->ranks) {
          idle = std::max(idle, r.idle);
          EXPECT_LE(r.peak_activations, p + 1);
        }
        EXPECT_EQ(MaxActivations(*run), p + 1);
        EXPECT_DOUBLE_EQ(idle, (p / 2.0 - 1) * (pair + 2 - 3));
        for (int s = 0; s < p; ++s) EXPECT_EQ(graph.members(s).size(), 1u);
      }
    }
  }
}

TEST(DualPipe, SizesThatItCannotFill_AreRefusedWithTheReason) {
  EXPECT_THAT(Refusal("dualpipe", {}, 5, 20), HasSubstr("even number"));
  EXPECT_THAT(Refusal("dualpipe", {}, 4, 9), HasSubstr("even number of at least 2 W = 8"));
  EXPECT_THAT(Refusal("dualpipe", {}, 4, 6), HasSubstr("at least 2 W = 8"));
  EXPECT_THAT(Refusal("dualpipe_v", {}, 7, 8), HasSubstr("even number"));
  EXPECT_THAT(Refusal("dualpipe_v", {}, 8, 6), HasSubstr("at least 2 W = 8"));
}

// The pairs do not start together with other durations; nothing else may change.
TEST(DualPipe, UnequalTimes_EveryJobRunsInItsOrder) {
  for (const char* name : {"dualpipe", "dualpipe_v"}) {
    const auto run = MustSimulate(name, {}, 8, 24, {3, 0, 1, 5}, 3);
    for (const RankStats& r : run.ranks) {
      EXPECT_NEAR(r.busy + r.idle, run.makespan, 1e-9);
      EXPECT_LE(r.peak_activations, 9);
    }
  }
}

}  // namespace
}  // namespace weft::schedule_zero_bubble_test
