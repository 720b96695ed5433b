// Properties of every simulated run, over random families, sizes and durations: the graph is obeyed, a rank
// does one job at a time, the greedy rule and the limits hold. The seed of a failing case is printed; run it
// alone with WEFT_SEED.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/check.h"
#include "schedules/families.h"
#include "schedules/simulate.h"

namespace weft {
namespace {

struct Case {
  Schedule schedule;
  SimulationOptions options;
  std::string text;
};

Case Draw(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  const int stages = pick(1, 12), microbatches = pick(1, 16);
  std::map<std::string, std::string> parameters;
  std::string name;
  switch (pick(0, 3)) {
    case 0:
      name = "ddp";
      break;
    case 1:
      name = "gpipe";
      break;
    case 2:
      name = "1f1b";
      break;
    default:
      name = "lpp";
      parameters = {{"groups", absl::StrCat(pick(1, microbatches))},
                    {"ranks", absl::StrCat(pick(1, stages))}};
  }
  Case c;
  auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  c.schedule = *schedule;
  c.options.steps = pick(1, 4);
  c.options.record_jobs = true;
  for (int k = 0; k < kJobKinds; ++k) {
    auto& d = c.options.duration[k];
    d.clear();
    const bool none = k >= static_cast<int>(JobKind::kReduce) && pick(0, 1) == 0;
    for (int s = 0; s < stages; ++s) d.push_back(none ? 0 : pick(1, 9));
  }
  if (pick(0, 1) == 1) {
    c.options.latency = pick(0, 3);
    c.options.bandwidth = pick(0, 4);
    c.options.activation = {static_cast<double>(pick(0, 20))};
    c.options.weight = {static_cast<double>(pick(0, 40))};
  }
  c.text = absl::StrCat("seed ", seed, ": ", c.schedule.name, " S=", stages, " B=", microbatches,
                        " T=", c.options.steps);
  return c;
}

using Times = std::map<Job, SimulatedJob>;

// When each job had all its inputs, transfers on idle links assumed: a lower bound of readiness, exact
// without links.
double InputsAt(const Graph& graph, const Times& times, const Job& job) {
  std::vector<Edge> edges;
  graph.Predecessors(job, &edges);
  double at = 0;
  for (const Edge& e : edges) {
    if (e.from.step >= 0) at = std::max(at, times.at(e.from).end);
  }
  return at;
}

void CheckGraphObeyed(const Graph& graph, const Times& times) {
  for (const auto& [job, t] : times) {
    ASSERT_GE(t.start, InputsAt(graph, times, job)) << Describe(job);
    std::vector<Edge> edges;
    graph.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (e.from.step < 0) continue;
      std::vector<Edge> back;
      graph.Successors(e.from, &back);
      const auto same = [&](const Edge& o) {
        return o.to == job && o.tensor == e.tensor && o.part == e.part;
      };
      ASSERT_EQ(std::count_if(back.begin(), back.end(), same), 1)
          << Describe(e.from) << " does not name " << Describe(job) << " as its successor once";
    }
  }
}

void CheckOneAtATime(const SimulationResult& run) {
  std::map<Rank, double> busy_until;
  for (const SimulatedJob& j : run.jobs) {
    if (j.start == j.end) continue;
    ASSERT_GE(j.start, busy_until[j.rank]) << Describe(j.job) << " overlaps another job of rank " << j.rank;
    busy_until[j.rank] = j.end;
  }
}

int AliveAt(const SimulationResult& run, const Times& times, Rank rank, int stage, double at) {
  int alive = 0;
  for (const SimulatedJob& j : run.jobs) {
    if (j.job.kind != JobKind::kForward || j.rank != rank || j.job.stage != stage || j.start > at) continue;
    Job backward = j.job;
    backward.kind = JobKind::kBackward;
    alive += times.at(backward).end > at;
  }
  return alive;
}

void CheckLimits(const Schedule& s, const SimulationResult& run, const Times& times) {
  if (!s.limit) return;
  for (const SimulatedJob& j : run.jobs) {
    if (j.job.kind != JobKind::kForward) continue;
    const auto limit = s.limit(j.rank, j.job.stage);
    if (limit.has_value()) {
      ASSERT_LE(AliveAt(run, times, j.rank, j.job.stage, j.start), *limit) << Describe(j.job);
    }
  }
}

// A job that could have started before another of its rank, and would have been chosen, must not have waited
// for it.
void CheckGreedy(const Graph& graph, const SimulationResult& run, const Times& times) {
  for (const SimulatedJob& later : run.jobs) {
    const double ready = InputsAt(graph, times, later.job);
    for (const SimulatedJob& other : run.jobs) {
      if (other.rank != later.rank || other.start == other.end || other.start < ready ||
          other.start >= later.start)
        continue;
      const bool limited = graph.schedule().limit && later.job.kind == JobKind::kForward;
      if (limited && AliveAt(run, times, later.rank, later.job.stage, other.start) >=
                         graph.schedule().limit(later.rank, later.job.stage).value_or(1 << 30)) {
        continue;
      }
      ASSERT_LT(graph.PriorityOf(other.job), graph.PriorityOf(later.job))
          << Describe(other.job) << " at " << other.start << " went before " << Describe(later.job)
          << ", ready at " << ready;
    }
  }
}

TEST(SimulatedRun, RandomFamiliesSizesAndDurations_ObeyTheGraphTheRuleAndTheLimits) {
  const char* only = std::getenv("WEFT_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 400;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Case c = Draw(seed);
    SCOPED_TRACE(c.text);
    ASSERT_TRUE(CheckSchedule(c.schedule).ok()) << CheckSchedule(c.schedule);
    const Graph graph(c.schedule);
    const auto run = Simulate(graph, c.options);
    ASSERT_TRUE(run.ok()) << run.status();
    Times times;
    for (const SimulatedJob& j : run->jobs)
      ASSERT_TRUE(times.emplace(j.job, j).second) << Describe(j.job) << " ran twice";
    ASSERT_EQ(static_cast<int64_t>(times.size()), int64_t{graph.jobs_per_step()} * c.options.steps);
    CheckGraphObeyed(graph, times);
    CheckOneAtATime(*run);
    CheckLimits(c.schedule, *run, times);
    const bool links = c.options.latency > 0 || c.options.bandwidth > 0;
    if (!links) CheckGreedy(graph, *run, times);
    if (HasFatalFailure()) return;
  }
}

TEST(SimulatedRun, ClaimOrder_IsATopologicalOrderOfTheStep) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Case c = Draw(seed);
    SCOPED_TRACE(c.text);
    const Graph graph(c.schedule);
    const auto order = ClaimOrder(graph);
    ASSERT_TRUE(order.ok()) << order.status();
    // Walk all ranks' lists greedily: if every list can be emptied, no rank starves another.
    std::vector<size_t> next(order->size(), 0);
    std::map<Job, bool> done;
    size_t left = graph.jobs_per_step();
    for (bool moved = true; moved && left > 0;) {
      moved = false;
      for (size_t r = 0; r < order->size(); ++r) {
        while (next[r] < (*order)[r].size()) {
          const Job job = (*order)[r][next[r]];
          std::vector<Edge> edges;
          graph.Predecessors(job, &edges);
          const bool ready = std::all_of(edges.begin(), edges.end(),
                                         [&](const Edge& e) { return e.from.step < 0 || done[e.from]; });
          if (!ready) break;
          done[job] = true;
          ++next[r];
          --left;
          moved = true;
        }
      }
    }
    ASSERT_EQ(left, 0u);
  }
}

}  // namespace
}  // namespace weft
