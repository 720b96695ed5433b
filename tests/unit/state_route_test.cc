// States that migrate: their way from job to job, the edges along it, and what is refused.
#include "schedules/sync/state_route.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/cyclic.h"
#include "schedules/families/families.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/step_edges.h"
#include "schedules/simulator/simulate.h"
#include "schedules/sync/catalogue.h"
#include "tests/unit/without_terms.h"

namespace weft::state_route_test {
namespace {

using ::testing::HasSubstr;

Ticks TicksOf(int n) {
  return [n](const Job& job) { return CyclicTick(job, n); };
}

Schedule Cyclic(const std::string& rule, int n) {
  auto schedule = MakeSchedule("fsdp", {{"residency", "migrating"}}, n, n);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const absl::Status ruled = ApplyRule(rule, "fsdp", &*schedule);
  EXPECT_TRUE(ruled.ok()) << ruled;
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  return *std::move(schedule);
}

std::vector<Job> WayOf(const StateRoute& route, int stage) {
  std::vector<Job> way = {route.First(stage)};
  while (const std::optional<Job> next = route.After(way.back())) way.push_back(*next);
  return way;
}

TEST(StateRoute, OfTheCyclicOrder_AreEachJobOnceInTheOrderOfTicks) {
  for (const int n : {1, 2, 3, 4, 7}) {
    for (const int steps : {1, 2, 3, 5}) {
      const StateRoute route(Cyclic("cdp_v1", n), TicksOf(n), steps);
      for (int s = 0; s < n; ++s) {
        SCOPED_TRACE(absl::StrCat("N=", n, " T=", steps, " stage ", s));
        const std::vector<Job> way = WayOf(route, s);
        ASSERT_EQ(way.size(), static_cast<size_t>(steps) * (2 * n + 1));
        EXPECT_FALSE(route.Before(way.front()).has_value());
        EXPECT_EQ(way.front(), Job::Compute(0, s, 0, JobKind::kForward));
        EXPECT_EQ(way.back(), Job::Update(steps - 1, s, 0));
        int64_t tick = -1;
        for (size_t i = 0; i < way.size(); ++i) {
          if (i > 0) {
            EXPECT_EQ(route.Before(way[i]), way[i - 1]) << Describe(way[i]);
          }
          if (way[i].kind == JobKind::kUpdate) {
            EXPECT_EQ(way[i - 1], Job::Compute(way[i].step, s, n - 1, JobKind::kBackward));
            continue;
          }
          EXPECT_GT(CyclicTick(way[i], n), tick) << Describe(way[i]);
          tick = CyclicTick(way[i], n);
        }
        std::vector<Job> sorted = way;
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
        EXPECT_TRUE(std::all_of(way.begin(), way.end(),
                                [&](const Job& j) { return j.stage == s && j.step >= 0 && j.step < steps; }));
      }
    }
  }
}

// In the middle of the run a step's first forwards come before backwards of the step before it.
TEST(StateRoute, BackwardsOfAStep_FollowForwardsOfTheNext) {
  const StateRoute route(Cyclic("cdp_v2", 4), TicksOf(4), 3);
  EXPECT_EQ(route.Before(Job::Compute(1, 0, 2, JobKind::kBackward)),
            Job::Compute(2, 0, 1, JobKind::kForward));
  // There is no step 3.
  EXPECT_EQ(route.Before(Job::Compute(2, 0, 2, JobKind::kBackward)),
            Job::Compute(2, 0, 1, JobKind::kBackward));
}

// A route's counts equal those of a walk along it.
TEST(StateRoute, Versions_AreThoseThatLaterStopsRead) {
  for (const std::string rule : {"cdp_v1", "cdp_v2"}) {
    for (const int n : {1, 2, 3, 5}) {
      for (const int steps : {1, 2, 4}) {
        const Graph graph(WithoutTerms(Cyclic(rule, n)), steps);
        const StateRoute& route = *graph.route();
        for (int s = 0; s < n; ++s) {
          const std::vector<Job> way = WayOf(route, s);
          int newest = 0;
          for (size_t i = 0; i < way.size(); ++i) {
            SCOPED_TRACE(absl::StrCat(rule, " N=", n, " T=", steps, " ", Describe(way[i])));
            if (way[i].kind == JobKind::kUpdate) {
              EXPECT_EQ(way[i].step, newest);
              ++newest;
            } else {
              EXPECT_LE(graph.VersionOf(way[i]), newest) << "it reads what is not made yet";
            }
            EXPECT_EQ(route.NewestAfter(way[i]), newest);
            int held = 1;
            for (int v = 0; v < newest; ++v) {
              // The version is read by a later stop, or by the steps behind the last.
              const bool read = v + graph.schedule().MaxStaleness(s) >= steps ||
                                std::any_of(way.begin() + i + 1, way.end(), [&](const Job& j) {
                                  return HasMicrobatch(j.kind) && graph.VersionOf(j) == v;
                                });
              EXPECT_EQ(route.IsReadAfter(way[i], v), read) << "version " << v;
              held += read;
            }
            EXPECT_EQ(route.VersionsAfter(way[i]), held);
          }
        }
      }
    }
  }
}

using Link = std::tuple<Job, Job, TensorKind, int>;

TEST(StepEdges, OfARunWhoseStateMigrates_AreTheGraphsInEveryStep) {
  for (const int n : {1, 2, 4}) {
    for (int steps = 1; steps <= 10; ++steps) {
      SCOPED_TRACE(absl::StrCat("N=", n, " T=", steps));
      const Graph graph(WithoutTerms(Cyclic("cdp_v2", n)), steps);
      const StepEdges flat(graph);
      std::vector<Link> behind, flattened;
      for (int t = 0; t < steps; ++t) {
        for (int i = 0; i < graph.jobs_per_step(); ++i) {
          const Job job = graph.JobAt(t, i);
          std::vector<Edge> edges;
          graph.Predecessors(job, &edges);
          for (const Edge& e : edges) behind.push_back({e.from, e.to, e.tensor, e.part});
          const auto messages = std::count_if(edges.begin(), edges.end(), [&](const Edge& e) {
            return graph.RankOf(e.from) != graph.RankOf(e.to);
          });
          // The state, and leave to enter the first stage.
          EXPECT_LE(messages, job.kind == JobKind::kForward && job.stage == 0 ? 2 : 1) << Describe(job);
          EXPECT_EQ(flat.WaitingAt(t)[i], static_cast<int>(edges.size())) << Describe(job);
          for (const auto& s : flat.SuccessorsOf(t, i))
            flattened.push_back({job, graph.JobAt(t + s.distance, s.index), s.tensor, s.part});
        }
      }
      for (auto* links : {&behind, &flattened}) std::sort(links->begin(), links->end());
      EXPECT_EQ(std::adjacent_find(behind.begin(), behind.end()), behind.end()) << "an edge is there twice";
      EXPECT_EQ(behind, flattened);
    }
  }
}

// However long jobs and transfers take: jobs of a stage never overlap, and follow the way of its state.
TEST(MigratingState, AnyDurations_StopsFollowOneAnother) {
  for (const int n : {1, 2, 3, 5}) {
    const Graph graph(WithoutTerms(Cyclic("cdp_v2", n)), 5);
    SimulationOptions options;
    options.steps = 5;
    options.record_jobs = true;
    options.latency = 3;
    options.bandwidth = 2;
    options.weight = {7};
    options.duration[static_cast<int>(JobKind::kForward)].clear();
    options.duration[static_cast<int>(JobKind::kBackward)].clear();
    for (int s = 0; s < n; ++s) {
      options.duration[static_cast<int>(JobKind::kForward)].push_back(1 + 5 * s % 7);
      options.duration[static_cast<int>(JobKind::kBackward)].push_back(2 + 11 * s % 5);
    }
    const auto run = Simulate(graph, options);
    ASSERT_TRUE(run.ok()) << run.status();
    std::map<Job, SimulatedJob> jobs;
    for (const SimulatedJob& j : run->jobs) jobs[j.job] = j;
    for (int s = 0; s < n; ++s) {
      const std::vector<Job> way = WayOf(*graph.route(), s);
      for (size_t i = 1; i < way.size(); ++i) {
        const SimulatedJob &from = jobs.at(way[i - 1]), &to = jobs.at(way[i]);
        // A moving state takes the link's latency, and the time of one version at the least.
        EXPECT_GE(to.start, from.end + (from.rank == to.rank ? 0 : 3 + 7.0 / 2)) << Describe(way[i]);
      }
    }
    double sent = 0;
    for (const RankStats& r : run->ranks) {
      sent += r.sent_by_kind[static_cast<int>(TensorKind::kState)];
      EXPECT_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kWeights)], 0);
      EXPECT_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kGradient)], 0);
      EXPECT_EQ(r.weight_fetches, 0);
    }
    EXPECT_EQ(sent > 0, n > 1);
  }
}

TEST(MigratingState, Period_IsThatOfTheCyclicOrder) {
  for (const int n : {1, 2, 3, 4, 5}) {
    SimulationOptions options;
    options.steps = 6;
    const auto run = Simulate(Graph(WithoutTerms(Cyclic("cdp_v2", n))), options);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->period, 2 * n);
  }
}

TEST(MigratingState, HeldBytes_AreThoseOfTwoStages) {
  SimulationOptions options;
  options.steps = 2;
  options.weight = {10, 20, 30};
  options.state = {1, 2, 3};
  const auto run = Simulate(Graph(WithoutTerms(Cyclic("cdp_v1", 3))), options);
  ASSERT_TRUE(run.ok()) << run.status();
  for (const RankStats& r : run->ranks) EXPECT_EQ(r.held_bytes, 2 * 20 + 2 + 2 * 30 + 3);
}

// ---- what is refused

TEST(MigratingState, WithoutACyclicRuleOrByWidth_IsRefusedWithTheReason) {
  Schedule schedule = *MakeSchedule("fsdp", {{"residency", "migrating"}}, 4, 4);
  EXPECT_THAT(std::string(ApplyRule("sync", "fsdp", &schedule).message()), HasSubstr("add rule=cdp_v1"));
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(schedule)).message()),
              HasSubstr("it needs the cyclic order"));
  EXPECT_THAT(
      std::string(
          MakeSchedule("fsdp", {{"residency", "migrating"}, {"shard", "width"}}, 4, 4).status().message()),
      HasSubstr("residency=migrating goes with shard=stage"));
  EXPECT_THAT(std::string(MakeSchedule("fsdp", {{"residency", "moving"}}, 4, 4).status().message()),
              HasSubstr("must be sharded or migrating"));
}

TEST(CheckRoute, RoutesThatAreNotSound_AreRefusedNamingTheJobs) {
  const auto refusal = [](const std::function<void(Schedule*)>& change) {
    Schedule s = Cyclic("cdp_v2", 3);
    change(&s);
    return std::string(CheckSchedule(WithoutTerms(s)).message());
  };
  const Ticks ticks = TicksOf(3);
  EXPECT_THAT(
      refusal([&](Schedule* s) { s->sync = Migrating([ticks](const Job& j) { return ticks(j) / 2; }); }),
      HasSubstr("at once"));
  EXPECT_THAT(
      refusal([&](Schedule* s) { s->sync = Migrating([](const Job& j) { return int64_t{j.microbatch}; }); }),
      HasSubstr("not later than those of the step before"));
  EXPECT_THAT(refusal([&](Schedule* s) {
                s->sync =
                    Migrating([ticks](const Job& j) { return ticks(j) + (j.microbatch == 1 ? j.step : 0); });
              }),
              HasSubstr("differ from those of other jobs"));
  EXPECT_THAT(refusal([&](Schedule* s) {
                s->sync = Migrating([ticks](Job j) {
                  j.microbatch = 2 - j.microbatch;
                  return ticks(j);
                });
              }),
              HasSubstr("summed in the order of micro-batches"));
  EXPECT_THAT(refusal([&](Schedule* s) { s->staleness = [](int, int) { return 0; }; }),
              HasSubstr("would read weights that do not exist yet"));
  EXPECT_THAT(refusal([&](Schedule* s) {
                // Backwards go down the stages, against the gradients.
                s->sync = Migrating([ticks](Job j) {
                  if (j.kind == JobKind::kBackward) j.stage = 2 - j.stage;
                  return 2 * ticks(j) + (j.kind == JobKind::kBackward);
                });
                s->staleness = [](int, int) { return 2; };
              }),
              HasSubstr("puts it no later"));
  EXPECT_THAT(refusal([&](Schedule* s) {
                s->compute = [](const Job& j) { return j.kind == JobKind::kForward ? j.microbatch : 0; };
              }),
              HasSubstr("a rank runs the jobs of one step after those of the step before"));
  EXPECT_THAT(refusal([&](Schedule* s) { s->limit = [](Rank, int) -> std::optional<int> { return 3; }; }),
              HasSubstr("cannot be combined with a limit"));
}

}  // namespace
}  // namespace weft::state_route_test
