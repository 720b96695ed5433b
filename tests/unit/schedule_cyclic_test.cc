// Schedules that read old weights: the cyclic rules, pipedream and pipedream_2bw, against their closed forms.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/candidates.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "schedules/sync/held_versions.h"
#include "tests/unit/cyclic_placements.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_cyclic_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SimulationResult MustSimulate(const RunSchedule& schedule, int steps) {
  SimulationOptions options;
  options.steps = steps;
  options.record_jobs = true;
  auto run = Simulate(Graph(schedule), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}
SimulationResult MustSimulate(const Schedule& scheme, int steps) {
  return MustSimulate(WithoutTerms(scheme), steps);
}

// The activations alive over all ranks, and the ranks that compute, at every tick of length 1.
struct Ticks {
  std::vector<int> alive, busy;
};

Ticks TicksOf(const SimulationResult& run) {
  const int end = static_cast<int>(run.makespan);
  Ticks ticks{std::vector<int>(end, 0), std::vector<int>(end, 0)};
  std::map<std::vector<int>, int> begun;
  for (const SimulatedJob& j : run.jobs) {
    if (!HasMicrobatch(j.job.kind)) continue;
    const int start = static_cast<int>(j.start);
    ++ticks.busy[start];
    int& since = begun[{j.job.step, j.job.stage, j.job.microbatch}];
    if (j.job.kind == JobKind::kForward) {
      since = start;
    } else {
      for (int t = since; t <= start; ++t) ++ticks.alive[t];
    }
  }
  return ticks;
}

TEST(CyclicRule, EveryFamily_HoldsNTimesNPlus1Over2ActivationsWithAllRanksBusyAfterTheFill) {
  for (int n : {1, 2, 3, 4, 7}) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      for (const Base& base : BasesOf(n)) {
        SCOPED_TRACE(absl::StrCat(base.name, " N=", n, " ", rule));
        constexpr int kSteps = 4;
        const auto run = MustSimulate(Ruled(base, rule, n), kSteps);
        // The last micro-batch starts after a fill of 2(N-1) and goes on without a break.
        EXPECT_EQ(run.makespan, 2 * n * kSteps + 2 * (n - 1));
        const Ticks ticks = TicksOf(run);
        for (int t = 2 * (n - 1); t < 2 * n * kSteps; ++t) {
          EXPECT_EQ(ticks.alive[t], n * (n + 1) / 2) << "tick " << t;
          EXPECT_EQ(ticks.busy[t], n) << "tick " << t;
        }
      }
    }
  }
}

TEST(CyclicRule, EveryJob_RunsAtItsTickAndReadsItsVersion) {
  constexpr int n = 4;
  for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
    for (const Base& base : BasesOf(n)) {
      SCOPED_TRACE(absl::StrCat(base.name, " ", rule));
      for (const SimulatedJob& j : MustSimulate(Ruled(base, rule, n), 3).jobs) {
        if (!HasMicrobatch(j.job.kind)) continue;
        const int t = j.job.step, s = j.job.stage, b = j.job.microbatch;
        const bool forward = j.job.kind == JobKind::kForward;
        EXPECT_EQ(j.start, 2 * n * t + 2 * b + (forward ? s : 2 * n - 1 - s)) << Describe(j.job);
        // 1-based: stage j of micro-batch i reads the newest if j >= n - i + 1.
        const bool newest = rule == "cdp_v2" && s + 1 >= n - (b + 1) + 1;
        EXPECT_EQ(j.weights_version, newest ? t : std::max(0, t - 1)) << Describe(j.job);
      }
    }
  }
}

TEST(CyclicRule, Versions_AreTwoWhereARankReadsOldAndNewWeights) {
  const auto peaks = [](const Base& base, const std::string& rule) {
    std::vector<int> peaks;
    for (const RankStats& r : MustSimulate(Ruled(base, rule, 4), 4).ranks)
      peaks.push_back(r.peak_weight_versions);
    return peaks;
  };
  // The last, the home, makes each version before it reads the one before.
  EXPECT_THAT(peaks({"ddp", {}}, "cdp_v1"), testing::ElementsAre(1, 1, 1, 2));
  EXPECT_THAT(peaks({"ddp", {}}, "cdp_v2"), testing::ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(peaks({"gpipe", {}}, "cdp_v2"), testing::ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(peaks({"fsdp", {{"residency", "migrating"}}}, "cdp_v2"), testing::ElementsAre(2, 2, 2, 2));
}

// Every micro-batch has a rank of its own, which is told of a version when it has left the one before.
TEST(CyclicRule, DataParallel_NeedsOneVersionOfEachStage) {
  for (int n = 2; n <= 16; ++n) {
    SCOPED_TRACE(n);
    for (const Base& base : {Base{"ddp", {}}, Base{"lpp", {{"groups", absl::StrCat(n)}, {"ranks", "1"}}}}) {
      const auto run = MustSimulate(Ruled(base, "cdp_v2", n), 5);
      EXPECT_EQ(run.period, 2 * n);
      for (const RankStats& r : run.ranks) EXPECT_EQ(r.peak_weight_versions, 1);
    }
  }
}

// A memory budget counts what the simulator sees.
TEST(MaxVersions, OfEveryRank_AreThoseOfALongRun) {
  std::vector<Schedule> schedules = {*MakeSchedule("pipedream", {}, 4, 1),
                                     *MakeSchedule("pipedream_2bw", {}, 3, 3),
                                     *MakeSchedule("1f1b", {}, 4, 4)};
  for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
    for (const Base& base : BasesOf(4)) schedules.push_back(Ruled(base, rule, 4));
  }
  for (const Schedule& schedule : schedules) {
    SCOPED_TRACE(schedule.name);
    const Graph graph(WithoutTerms(schedule));
    const auto run = MustSimulate(schedule, 10);
    std::vector<int> most(schedule.ranks, 0);
    for (int s = 0; s < schedule.stages; ++s) {
      for (Rank rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Rank>& members = graph.members(s);
        const bool holds = std::find(members.begin(), members.end(), rank) != members.end();
        if (holds || graph.route() != nullptr) most[rank] = std::max(most[rank], MaxVersions(graph, s, rank));
      }
    }
    for (Rank rank = 0; rank < schedule.ranks; ++rank) {
      EXPECT_EQ(run.ranks[rank].peak_weight_versions, most[rank]) << "rank " << rank;
    }
  }
}

// The forwards of a pipeline are bounded by the order alone, whatever the durations.
TEST(CyclicRule, UnequalDurations_StillBoundActivationsByNMinusS) {
  for (const char* name : {"gpipe", "1f1b"}) {
    SimulationOptions options;
    options.steps = 5;
    options.duration[static_cast<int>(JobKind::kForward)] = {1, 5, 2, 1};
    options.duration[static_cast<int>(JobKind::kBackward)] = {7, 1, 1, 3};
    const auto run = Simulate(Graph(WithoutTerms(Ruled({name, {}}, "cdp_v2", 4))), options);
    ASSERT_TRUE(run.ok()) << run.status();
    for (int s = 0; s < 4; ++s) EXPECT_LE(run->ranks[s].peak_activations, 4 - s);
  }
}

TEST(CyclicRule, WrongSizesOrFamilies_AreRefusedWithTheReason) {
  const auto refusal = [](const Base& base, const std::string& rule, int stages, int microbatches) {
    auto schedule = MakeSchedule(base.name, base.parameters, stages, microbatches);
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    const absl::Status ruled = ApplyRule(rule, base.name, &*schedule);
    EXPECT_EQ(ruled.code(), absl::StatusCode::kInvalidArgument);
    return std::string(ruled.message());
  };
  EXPECT_THAT(refusal({"ddp", {}}, "cdp_v1", 4, 3),
              AllOf(HasSubstr("must be equal"), HasSubstr("4, 3 and 3")));
  EXPECT_THAT(refusal({"1f1b", {}}, "cdp_v2", 3, 4), HasSubstr("3, 4 and 3"));
  EXPECT_THAT(refusal({"lpp", {{"groups", "4"}, {"ranks", "2"}}}, "cdp_v2", 4, 4), HasSubstr("4, 4 and 8"));
  EXPECT_THAT(refusal({"fsdp", {{"shard", "width"}}}, "cdp_v2", 4, 4), HasSubstr("use shard=stage"));
  EXPECT_THAT(refusal({"zb_h1", {}}, "cdp_v2", 4, 4),
              HasSubstr("the rule is for 1f1b, cdp_mp, ddp, fsdp, gpipe, lpp"));
  EXPECT_THAT(refusal({"ddp", {}}, "cdp_v3", 4, 4), HasSubstr("did you mean \"cdp_v1\"?"));
}

TEST(PlainCandidates, EqualSizes_HaveTheRulesOthersDoNot) {
  const auto texts = [](int stages, int microbatches) {
    std::vector<std::string> texts;
    for (const Candidate& c : PlainCandidates(stages, microbatches)) {
      auto schedule = MakeSchedule(c.name, c.parameters, stages, microbatches);
      EXPECT_TRUE(schedule.ok() && ApplyRule(c.rule, c.name, &*schedule).ok()) << c.name;
      texts.push_back(absl::StrCat(c.name, c.rule == "sync" ? "" : absl::StrCat(",rule=", c.rule)));
    }
    return texts;
  };
  EXPECT_THAT(texts(3, 3), AllOf(testing::Contains("ddp"), testing::Contains("ddp,rule=cdp_v1"),
                                 testing::Contains("fsdp,rule=cdp_v2"), testing::Contains("pipedream_2bw"),
                                 testing::Contains("lpp"), testing::Not(testing::Contains("pipedream"))));
  EXPECT_THAT(texts(3, 4), AllOf(testing::Contains("ddp"), testing::Each(testing::Not(HasSubstr("rule")))));
}

TEST(CyclicRule, Sync_ChangesNothing) {
  Schedule schedule = *MakeSchedule("zb_h1", {}, 4, 8);
  EXPECT_TRUE(ApplyRule("sync", "zb_h1", &schedule).ok());
  EXPECT_EQ(schedule.name, "zb_h1");
  EXPECT_FALSE(schedule.staleness);
  EXPECT_FALSE(schedule.precedes);
}

// ---- pipedream

TEST(PipeDream, AnyDepth_IsFullAfterTheFillAndKeepsSMinusSVersions) {
  for (int stages : {1, 2, 4, 8}) {
    SCOPED_TRACE(stages);
    const Schedule schedule = *MakeSchedule("pipedream", {}, stages, 1);
    ASSERT_TRUE(CheckSchedule(WithoutTerms(schedule)).ok()) << CheckSchedule(WithoutTerms(schedule));
    const int steps = 4 * stages;
    const auto run = MustSimulate(schedule, steps);
    EXPECT_EQ(run.makespan, 2 * steps + 2 * (stages - 1)) << "one micro-batch every forward and backward";
    for (int s = 0; s < stages; ++s) {
      EXPECT_EQ(run.ranks[s].peak_activations, stages - s);
      EXPECT_EQ(run.ranks[s].peak_weight_versions, stages - s);
    }
    for (const SimulatedJob& j : run.jobs) {
      if (!HasMicrobatch(j.job.kind)) continue;
      EXPECT_EQ(j.weights_version, std::max(0, j.job.step - (stages - 1 - j.job.stage))) << Describe(j.job);
    }
  }
}

TEST(PipeDream, SeveralMicrobatches_AreRefused) {
  const auto schedule = MakeSchedule("pipedream", {}, 4, 8);
  EXPECT_THAT(std::string(schedule.status().message()),
              AllOf(HasSubstr("after every micro-batch"), HasSubstr("pipedream_2bw")));
}

TEST(PipeDream2Bw, AsManyMicrobatchesAsStages_NeverDrainsAndKeepsTwoVersions) {
  for (int stages : {1, 2, 4}) {
    for (int microbatches : {stages, 2 * stages}) {
      SCOPED_TRACE(absl::StrCat(stages, " stages, ", microbatches, " micro-batches"));
      const Schedule schedule = *MakeSchedule("pipedream_2bw", {}, stages, microbatches);
      ASSERT_TRUE(CheckSchedule(WithoutTerms(schedule)).ok()) << CheckSchedule(WithoutTerms(schedule));
      constexpr int kSteps = 5;
      const auto run = MustSimulate(schedule, kSteps);
      EXPECT_EQ(run.makespan, 2 * microbatches * kSteps + 2 * (stages - 1)) << "one fill and one drain";
      for (int s = 0; s < stages; ++s) {
        EXPECT_EQ(run.ranks[s].peak_weight_versions, 2);
        EXPECT_EQ(run.ranks[s].peak_activations, stages - s);
      }
    }
  }
}

// ---- what clipping by the global norm costs: an update waits for the gradients of all stages

double ClippedPeriod(Schedule scheme) {
  RunSchedule schedule = WithoutTerms(std::move(scheme));
  schedule.terms.takes_norm = true;
  EXPECT_TRUE(CheckSchedule(schedule).ok()) << CheckSchedule(schedule);
  return MustSimulate(schedule, 16).period;
}

// The next read of an update comes late enough under cdp_v1. Under cdp_v2 the last stage's first job of a
// step reads the newest weights, and it waits for the first stage's last backward; from there on 3N-1 ticks
// lead to the next.
TEST(Clipping, CyclicRules_V1LosesNothingAndV2ItsOverlap) {
  for (int n : {1, 2, 3, 4, 7}) {
    for (const Base& base : BasesOf(n)) {
      SCOPED_TRACE(absl::StrCat(base.name, " N=", n));
      if (base.parameters.count("residency") != 0) continue;  // refused
      EXPECT_EQ(ClippedPeriod(Ruled(base, "cdp_v1", n)), 2 * n);
      const double fresh = ClippedPeriod(Ruled(base, "cdp_v2", n));
      const int chain = n == 1 ? 2 : 3 * n - 1;
      // Stages of a rank with several micro-batches also wait for one another.
      const bool looped = base.name == "lpp" && base.parameters.at("groups") == "2";
      EXPECT_TRUE(looped ? fresh >= chain : fresh == chain) << fresh << " for " << chain;
    }
  }
}

TEST(Clipping, StateThatMigrates_IsRefusedWithTheReason) {
  RunSchedule schedule = WithoutTerms(Ruled({"fsdp", {{"residency", "migrating"}}}, "cdp_v2", 4));
  schedule.terms.takes_norm = true;
  EXPECT_THAT(std::string(CheckSchedule(schedule).message()),
              testing::HasSubstr("cannot be combined with clipping"));
}

TEST(Clipping, PipeDream_WaitsForTheWholeBackwardAnd2BwDoesNot) {
  for (int stages : {1, 2, 4, 8}) {
    SCOPED_TRACE(stages);
    EXPECT_EQ(ClippedPeriod(*MakeSchedule("pipedream", {}, stages, 1)), stages + 1);
    EXPECT_EQ(ClippedPeriod(*MakeSchedule("pipedream_2bw", {}, stages, stages)), 2 * stages);
  }
}

TEST(Clipping, OnTheNewestWeights_PipelinesThatDrainLoseNothing) {
  EXPECT_EQ(ClippedPeriod(*MakeSchedule("1f1b", {}, 4, 8)),
            MustSimulate(*MakeSchedule("1f1b", {}, 4, 8), 16).period);
  EXPECT_EQ(ClippedPeriod(*MakeSchedule("ddp", {}, 4, 8)),
            MustSimulate(*MakeSchedule("ddp", {}, 4, 8), 16).period);
  // It keeps a rank busy over the border of steps, for which updates must not wait for one another.
  EXPECT_GT(ClippedPeriod(*MakeSchedule("zb_h2", {}, 4, 8)),
            MustSimulate(*MakeSchedule("zb_h2", {}, 4, 8), 16).period);
}

TEST(Candidates, SchedulesThatReadOldWeights_AreLeftOut) {
  for (const Candidate& candidate : Candidates(4, 1)) {
    const auto schedule = MakeSchedule(candidate.name, candidate.parameters, 4, 1);
    EXPECT_FALSE(schedule.ok() && schedule->staleness) << candidate.name;
  }
}

TEST(OldWeightCandidates, AnySizes_ReadOldWeightsAndCanBeHad) {
  const auto names = [](int stages, int microbatches) {
    std::vector<std::string> names;
    for (const Candidate& c : OldWeightCandidates(stages, microbatches)) {
      auto schedule = MakeSchedule(c.name, c.parameters, stages, microbatches);
      EXPECT_TRUE(schedule.ok() && ApplyRule(c.rule, c.name, &*schedule).ok()) << c.name;
      EXPECT_GT(schedule->MaxStaleness(), 0) << c.name;
      names.push_back(absl::StrCat(c.name, ",rule=", c.rule));
    }
    return names;
  };
  EXPECT_THAT(names(4, 1), testing::ElementsAre("pipedream,rule=sync", "pipedream_2bw,rule=sync"));
  EXPECT_THAT(names(4, 8), testing::ElementsAre("pipedream_2bw,rule=sync"));
  EXPECT_THAT(names(4, 4),
              AllOf(testing::Contains("ddp,rule=cdp_v1"), testing::Contains("cdp_mp,rule=cdp_v2"),
                    testing::Not(testing::Contains("cdp_mp,rule=sync"))));
}

// With G = B/2 groups of S ranks each micro-batch has half a pipeline for itself: latency S + 1, two
// activations and one stage of weights a rank.
TEST(Candidates, LoopedPipelines_HaveMoreRanksThanStagesAndMicrobatches) {
  for (const auto& [stages, microbatches] : {std::pair{4, 8}, std::pair{8, 8}, std::pair{8, 32}}) {
    SCOPED_TRACE(absl::StrCat("S=", stages, " B=", microbatches));
    const std::map<std::string, std::string> wanted = {{"groups", absl::StrCat(microbatches / 2)},
                                                       {"ranks", absl::StrCat(stages)}};
    int found = 0;
    for (const Candidate& c : Candidates(stages, microbatches)) {
      if (c.name != "lpp" || c.parameters != wanted) continue;
      ++found;
      const Schedule schedule = *MakeSchedule(c.name, c.parameters, stages, microbatches);
      const auto run = MustSimulate(schedule, 1);
      EXPECT_EQ(schedule.ranks, stages * microbatches / 2);
      EXPECT_EQ(run.makespan, 2 * (stages + 1));
      for (const RankStats& rank : run.ranks) EXPECT_EQ(rank.peak_activations, 2);
      const Graph graph(WithoutTerms(schedule));
      std::vector<int> held(schedule.ranks, 0);
      for (int s = 0; s < stages; ++s) {
        for (const Rank member : graph.members(s)) ++held[member];
      }
      EXPECT_THAT(held, testing::Each(1));
    }
    EXPECT_EQ(found, 1);
  }
}

TEST(Candidates, GroupsWithMoreMicrobatchesThanStages_AlsoComeWithABound) {
  int bounded = 0;
  for (const Candidate& c : Candidates(4, 16)) {
    if (!c.parameters.contains("in_flight") && !c.parameters.contains("order")) continue;
    ++bounded;
    const auto schedule = MakeSchedule(c.name, c.parameters, 4, 16);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok());
    ASSERT_TRUE(schedule->limit != nullptr) << schedule->name;
  }
  EXPECT_EQ(bounded, 8) << "lpp and fslpp, two groups of two and of four ranks, either bound";
  for (const Candidate& c : Candidates(4, 8)) {
    EXPECT_FALSE(c.parameters.contains("in_flight") || c.parameters.contains("order")) << c.name;
  }
}

TEST(DeeperCandidates, PipelinesAndInterleaved_HaveMoreInFlight) {
  const auto parameters = [](const Candidate& candidate, int microbatches) {
    std::vector<std::map<std::string, std::string>> all;
    for (const Candidate& c : DeeperCandidates(candidate, microbatches)) {
      EXPECT_EQ(c.name, candidate.name);
      all.push_back(c.parameters);
    }
    return all;
  };
  using Maps = std::vector<std::map<std::string, std::string>>;
  const Maps depths = {{{"in_flight", "2*(S-s)-1"}}, {{"in_flight", "3*(S-s)-2"}}};
  EXPECT_EQ(parameters({"1f1b", {}}, 8), depths);
  EXPECT_EQ(parameters({"pipedream_2bw", {}}, 8), depths);
  EXPECT_EQ(parameters({"1f1b", {}, "cdp_v2"}, 8), Maps());
  EXPECT_EQ(parameters({"gpipe", {}}, 8), Maps());
  EXPECT_EQ(parameters({"interleaved", {{"ranks", "4"}}}, 8), (Maps{{{"group", "8"}, {"ranks", "4"}}}));
}

}  // namespace
}  // namespace weft::schedule_cyclic_test
