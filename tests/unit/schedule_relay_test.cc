// Tests the messages between ranks under the cyclic order: running sums and new versions from holder to
// holder, a constant number of messages a tick, and the pyramid of cdp_mp.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/dispatch/memory.h"
#include "schedules/families/candidates.h"
#include "schedules/families/families.h"
#include "schedules/graph/step_edges.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/cyclic_placements.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_relay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SimulationResult MustSimulate(const Graph& graph, int steps, double weight = 0) {
  SimulationOptions options;
  options.steps = steps;
  options.weight = {weight};
  options.record_jobs = true;
  auto run = Simulate(graph, options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

// The most messages, with and without a tensor, that one rank sends, and that one receives, within one tick.
// A fetched copy of weights counts where the job that asks for it starts; everything else where it is made.
struct Messages {
  int sent = 0, received = 0, tensors_sent = 0, tensors_received = 0;
};

Messages MaxMessages(const Graph& graph, int steps) {
  const SimulationResult run = MustSimulate(graph, steps);
  std::map<Job, double> start;
  for (const SimulatedJob& j : run.jobs) start[j.job] = j.start;
  std::map<std::pair<Rank, int>, Messages> by_tick;
  const StepEdges successors(graph);
  std::vector<Edge> edges;
  for (const SimulatedJob& j : run.jobs) {
    edges.clear();
    successors.AppendSuccessors(graph, j.job, &edges);
    for (const Edge& e : edges) {
      const Rank to = graph.RankOf(e.to);
      if (e.to.step >= steps || to == j.rank) continue;
      const bool fetched = e.tensor == TensorKind::kWeights && HasMicrobatch(e.to.kind);
      const int tick = static_cast<int>(fetched ? start.at(e.to) : j.end);
      Messages& out = by_tick[{j.rank, tick}];
      Messages& in = by_tick[{to, tick}];
      ++out.sent;
      ++in.received;
      out.tensors_sent += e.tensor != TensorKind::kOrder;
      in.tensors_received += e.tensor != TensorKind::kOrder;
    }
  }
  Messages most;
  for (const auto& [where, m] : by_tick) {
    most.sent = std::max(most.sent, m.sent);
    most.received = std::max(most.received, m.received);
    most.tensors_sent = std::max(most.tensors_sent, m.tensors_sent);
    most.tensors_received = std::max(most.tensors_received, m.tensors_received);
  }
  return most;
}

// docs/schedules/cyclic.md states these.
TEST(CyclicMessages, EveryPlacement_HasAConstantNumberPerTickAndRank) {
  constexpr int kMaxTensors = 3, kMaxMessages = 4;
  for (int n = 2; n <= 8; ++n) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      for (const Base& base : BasesOf(n)) {
        SCOPED_TRACE(absl::StrCat(base.name, " N=", n, " ", rule));
        const Messages most = MaxMessages(Graph(WithoutTerms(Ruled(base, rule, n)), 4), 4);
        EXPECT_GE(most.tensors_sent, 1);
        EXPECT_LE(most.tensors_sent, kMaxTensors);
        EXPECT_LE(most.tensors_received, kMaxTensors);
        EXPECT_LE(most.sent, kMaxMessages);
        EXPECT_LE(most.received, kMaxMessages);
      }
    }
  }
}

// The same count on a schedule that is not cyclic: it grows with N, so the bound above says something.
TEST(CyclicMessages, PlainDdp_HasMoreWithMoreRanks) {
  const auto most = [](int n) {
    return MaxMessages(Graph(WithoutTerms(*MakeSchedule("ddp", {}, n, n))), 2).sent;
  };
  EXPECT_GE(most(8), most(4) + 4);
}

TEST(CyclicSchedules, EveryPlacement_HasNoReduceAndNoSlices) {
  for (int n = 1; n <= 6; ++n) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      for (const Base& base : BasesOf(n)) {
        SCOPED_TRACE(absl::StrCat(base.name, " N=", n, " ", rule));
        const Graph graph(WithoutTerms(Ruled(base, rule, n)), 6);
        for (int i = 0; i < graph.jobs_per_step(); ++i) {
          EXPECT_NE(graph.JobAt(0, i).kind, JobKind::kReduce);
        }
        std::vector<Edge> edges;
        for (int i = 0; i < graph.jobs_per_step(); ++i) graph.Predecessors(graph.JobAt(3, i), &edges);
        for (const Edge& e : edges) {
          EXPECT_TRUE(e.part == 0 || e.tensor == TensorKind::kActivation) << "of " << Describe(e.from);
        }
      }
    }
  }
}

// ---- the relay

// Returns the ranks that get version t+1 of a stage one from the other, from the home on.
std::vector<Rank> RelayOf(const Graph& graph, int step, int stage) {
  std::vector<Rank> ranks;
  for (Job job = Job::Update(step, stage, graph.protocol(stage).home());;) {
    ranks.push_back(graph.RankOf(job));
    std::vector<Edge> edges;
    StepEdges(graph).AppendSuccessors(graph, job, &edges);
    const auto next = std::find_if(edges.begin(), edges.end(), [](const Edge& e) {
      return e.to.kind == JobKind::kUpdate && e.tensor == TensorKind::kWeights;
    });
    if (next == edges.end()) return ranks;
    EXPECT_EQ(next->version, step + 1);
    job = next->to;
  }
}

TEST(Relay, OfDdp_GoesFromTheLastRankInTheOrderOfReading) {
  const Graph v1(WithoutTerms(Ruled({"ddp", {}}, "cdp_v1", 4))),
      v2(WithoutTerms(Ruled({"ddp", {}}, "cdp_v2", 4)));
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(v1.members(stage)[v1.protocol(stage).home()], 3);
    EXPECT_THAT(RelayOf(v1, 5, stage), ElementsAre(3, 0, 1, 2));
  }
  EXPECT_THAT(RelayOf(v2, 5, 0), ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(RelayOf(v2, 5, 1), ElementsAre(3, 2, 0, 1));
  EXPECT_THAT(RelayOf(v2, 5, 2), ElementsAre(3, 1, 2, 0));
  EXPECT_THAT(RelayOf(v2, 5, 3), ElementsAre(3, 0, 1, 2));
}

// The update of a holder that installs late comes behind its own backward of the step, and before the next
// forward; and it has what the step began with.
TEST(Relay, HolderThatReadsOldWeights_InstallsThemBehindItsBackward) {
  const Graph graph(WithoutTerms(Ruled({"ddp", {}}, "cdp_v2", 4)));
  std::vector<Edge> edges;
  graph.Predecessors(Job::Update(5, 1, 0), &edges);
  const Job backward = Job::Compute(5, 1, 0, JobKind::kBackward);
  EXPECT_THAT(edges, testing::UnorderedElementsAre(
                         Edge{Job::Update(4, 1, 2), Job::Update(5, 1, 0), TensorKind::kWeights, 0, 5},
                         Edge{backward, Job::Update(5, 1, 0), TensorKind::kOrder, 0, 0},
                         Edge{Job::Update(4, 1, 0), Job::Update(5, 1, 0), TensorKind::kOrder, 0, 0}));
  edges.clear();
  const Job forward = Job::Compute(6, 1, 0, JobKind::kForward);
  graph.Predecessors(forward, &edges);
  EXPECT_THAT(edges, testing::Contains(Edge{Job::Update(5, 1, 0), forward, TensorKind::kOrder, 0, 5}));
}

// The members of a stage are other ones for the same micro-batch in the next step; the relay goes with them.
TEST(Relay, OfThePyramid_ChangesFromStepToStepAndReachesEveryHolder) {
  const Graph graph(WithoutTerms(Ruled({"cdp_mp", {}}, "cdp_v2", 4)));
  EXPECT_EQ(graph.schedule().period, 3);
  EXPECT_THAT(graph.members(1), ElementsAre(4, 5, 6));
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE(step);
    // Micro-batch n = tN + b is on rank 4 + n mod 3; the first readers are n = 4(t+1) + 2, ..
    const std::vector<Rank> ranks = RelayOf(graph, step, 1);
    EXPECT_EQ(ranks[0], 4) << "micro-batch 3 of step 0 is on the first rank";
    std::vector<Rank> readers;
    for (int n = 4 * (step + 1) + 2; readers.size() < 2; ++n) {
      if (n % 3 != 0) readers.push_back(4 + n % 3);
    }
    EXPECT_EQ(std::vector<Rank>(ranks.begin() + 1, ranks.end()), readers);
  }
}

TEST(Relay, BytesOfAStep_AreAllButOneHolderTimesTheWeightsForSumsAndForVersions) {
  for (const Base& base : std::vector<Base>{{"ddp", {}}, {"lpp", {{"groups", "4"}, {"ranks", "1"}}}}) {
    const Graph graph(WithoutTerms(Ruled(base, "cdp_v2", 4)));
    constexpr int kSteps = 3;
    double sums = 0, versions = 0;
    for (const RankStats& r : MustSimulate(graph, kSteps, 10).ranks) {
      EXPECT_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kGradient)], 0);
      sums += r.sent_by_kind[static_cast<int>(TensorKind::kGradientSum)];
      versions += r.sent_by_kind[static_cast<int>(TensorKind::kWeights)];
    }
    // 4 stages of 10 bytes over 3 links; the last micro-batch is on the home. On each stage but the last, the
    // first holder that installs late gets no version in the first step.
    EXPECT_EQ(sums, kSteps * 4 * 10 * 3) << base.name;
    EXPECT_EQ(versions, kSteps * 4 * 10 * 3 - 3 * 10) << base.name;
  }
}

TEST(Relay, OptimizerState_IsOnTheHomeAlone) {
  const Graph graph(WithoutTerms(Ruled({"ddp", {}}, "cdp_v1", 3)));
  const std::vector<double> held = HeldBytes(graph, {{0}, {10}, {100}});
  EXPECT_THAT(held, ElementsAre(3 * 10, 3 * 10, 3 * (20 + 100)));
}

// Updates and transfers take time: nothing of the order breaks, and every holder still gets every version.
TEST(Relay, SlowUpdatesAndLinks_OnlyDelay) {
  for (const Base& base : BasesOf(4)) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      SimulationOptions options;
      options.steps = 6;
      options.latency = 3;
      options.weight = {4};
      options.bandwidth = 2;
      options.duration[static_cast<int>(JobKind::kUpdate)] = {5};
      const auto run = Simulate(Graph(WithoutTerms(Ruled(base, rule, 4))), options);
      EXPECT_TRUE(run.ok()) << base.name << " " << rule << ": " << run.status();
    }
  }
}

// ---- the pyramid

TEST(Pyramid, AnySize_HoldsOneActivationARankAndTakes2NTicksAStep) {
  for (int n : {1, 2, 3, 4, 5, 6, 8}) {
    for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
      SCOPED_TRACE(absl::StrCat("N=", n, " ", rule));
      const Graph graph(WithoutTerms(Ruled({"cdp_mp", {}}, rule, n)));
      EXPECT_EQ(graph.schedule().ranks, n * (n + 1) / 2);
      constexpr int kSteps = 6;
      const SimulationResult run = MustSimulate(graph, kSteps);
      EXPECT_EQ(run.period, 2 * n);
      EXPECT_EQ(run.makespan, 2 * n * kSteps + 2 * (n - 1));
      for (const RankStats& r : run.ranks) EXPECT_EQ(r.peak_activations, 1);
      for (int s = 0; s < n; ++s) EXPECT_EQ(graph.members(s).size(), static_cast<size_t>(n - s));
    }
  }
}

// Every rank has an activation at every instant in steady state: its next visit begins as the last one ends.
TEST(Pyramid, SteadyState_LeavesNoRankWithoutItsActivation) {
  constexpr int n = 4, kSteps = 5;
  std::map<Rank, std::vector<std::pair<double, double>>> passes;
  std::map<std::pair<int, std::pair<int, int>>, double> begun;
  for (const SimulatedJob& j :
       MustSimulate(Graph(WithoutTerms(Ruled({"cdp_mp", {}}, "cdp_v2", n))), kSteps).jobs) {
    const auto which = std::pair(j.job.step, std::pair(j.job.stage, j.job.microbatch));
    if (j.job.kind == JobKind::kForward) begun[which] = j.start;
    if (j.job.kind == JobKind::kBackward) passes[j.rank].push_back({begun.at(which), j.end});
  }
  EXPECT_EQ(passes.size(), 10u);
  for (const auto& [rank, of_rank] : passes) {
    for (size_t i = 1; i < of_rank.size(); ++i) {
      EXPECT_EQ(of_rank[i].first, of_rank[i - 1].second) << "rank " << rank;
    }
  }
}

// A forward waits for the backward of the visit before, whatever the durations.
TEST(Pyramid, UnequalDurations_StillOneActivationARank) {
  for (int seed = 0; seed < 20; ++seed) {
    SimulationOptions options;
    options.steps = 7;
    for (int k = 0; k < kJobKinds; ++k) {
      options.duration[k].clear();
      for (int s = 0; s < 4; ++s) options.duration[k].push_back(1 + (seed * 7 + k * 5 + s * 3) % 9);
    }
    options.latency = seed % 3;
    const auto run =
        Simulate(Graph(WithoutTerms(Ruled({"cdp_mp", {}}, seed % 2 == 0 ? "cdp_v1" : "cdp_v2", 4))), options);
    ASSERT_TRUE(run.ok()) << run.status();
    for (const RankStats& r : run->ranks) EXPECT_EQ(r.peak_activations, 1);
  }
}

TEST(Pyramid, OtherSizes_AreRefusedWithTheReason) {
  EXPECT_THAT(std::string(MakeSchedule("cdp_mp", {}, 4, 3).status().message()),
              HasSubstr("must be equal; they are 4 and 3"));
  EXPECT_TRUE(MakeSchedule("cdp_mp", {}, 10, 10).ok());
  for (int n : {11, 12, 17, 1000}) {
    EXPECT_THAT(std::string(MakeSchedule("cdp_mp", {}, n, n).status().message()),
                HasSubstr("use fewer stages"));
  }
}

TEST(Pyramid, WithoutARule_IsCdpV2InRunsAndNoCandidate) {
  EXPECT_EQ(DefaultRule("cdp_mp"), "cdp_v2");
  EXPECT_EQ(DefaultRule("ddp"), "sync");
  EXPECT_EQ(DefaultRule("custom"), "sync");
  for (const Candidate& candidate : Candidates(4, 4)) EXPECT_NE(candidate.name, "cdp_mp");
}

// ---- edges that change from step to step

TEST(StepEdges, PlacementsThatChangeWithTheStep_AreTheInversionOfPredecessorsInEveryStep) {
  std::vector<Schedule> schedules = {Ruled({"cdp_mp", {}}, "cdp_v1", 3), Ruled({"cdp_mp", {}}, "cdp_v2", 4)};
  for (const std::string weights : {"(b + t) % W", "(s + t) % W", "s % W"}) {
    schedules.push_back(*MakeSchedule(
        "custom", {{"workers", "3"}, {"compute", "(b + t) % W"}, {"weights", weights}, {"period", "3"}}, 3,
        4));
  }
  for (const Schedule& schedule : schedules) {
    SCOPED_TRACE(schedule.name);
    const Graph graph(WithoutTerms(schedule));
    const StepEdges flat(graph);
    using Link = std::tuple<Job, Job, TensorKind, int, int, bool>;
    constexpr int kSteps = 10;
    std::vector<Link> behind, ahead;
    std::vector<Edge> edges;
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < graph.jobs_per_step(); ++i) {
        const Job job = graph.JobAt(step, i);
        edges.clear();
        graph.Predecessors(job, &edges);
        for (const Edge& e : edges) {
          if (e.from.step >= 0) behind.push_back({e.from, e.to, e.tensor, e.part, e.version, e.joined});
        }
        EXPECT_EQ(flat.WaitingAt(step)[i],
                  std::count_if(edges.begin(), edges.end(), [](const Edge& e) { return e.from.step >= 0; }))
            << Describe(job);
        edges.clear();
        flat.AppendSuccessors(graph, job, &edges);
        for (const Edge& e : edges) {
          if (e.to.step < kSteps) ahead.push_back({e.from, e.to, e.tensor, e.part, e.version, e.joined});
        }
      }
    }
    std::sort(behind.begin(), behind.end());
    std::sort(ahead.begin(), ahead.end());
    EXPECT_EQ(ahead, behind);
  }
}

}  // namespace
}  // namespace weft::schedule_relay_test
