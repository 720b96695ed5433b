// Properties of every simulated run, over random families, sizes and durations: the graph is obeyed, a rank
// does one job at a time, the limits hold, and the greedy rule or the fixed order. The seed of a failing case
// is printed; run it alone with WEFT_SEED.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/families/families.h"
#include "schedules/graph/step_edges.h"
#include "schedules/simulator/simulate.h"
#include "tests/property/random_case.h"

namespace weft::schedule_property_test {
namespace {

// The same under budgets of bytes: what one micro-batch needs and up to as much again; what a fixed order, or
// the cyclic one, needs, and the gradients that it hands out.
void DrawMemory(uint64_t seed, RandomCase* c) {
  std::mt19937_64 rng(seed ^ 0x3e3), gradients(seed ^ 0x9a4);
  const Schedule& s = c->schedule.scheme;
  const Graph graph(c->schedule);
  ActivationMemory memory;
  c->options.activation.clear();
  for (int stage = 0; stage < s.stages; ++stage) {
    memory.activation_bytes.push_back(static_cast<int64_t>(rng() % 10));
    c->options.activation.push_back(static_cast<double>(memory.activation_bytes.back()));
    const bool leave = graph.protocol(stage).gradients_leave();
    memory.gradient_bytes.push_back(leave ? static_cast<int64_t>(gradients() % 10) : 0);
  }
  const int64_t all = std::accumulate(memory.gradient_bytes.begin(), memory.gradient_bytes.end(), int64_t{0});
  const auto free_run = Simulate(graph, c->options);
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    int64_t need = 0;
    for (int b = 0; b < s.microbatches; ++b) {
      int64_t sum = 0;
      for (int stage = 0; stage < s.stages; ++stage) {
        if (s.compute(Job::Compute(0, stage, b, JobKind::kForward)) == rank) sum += memory.RoomOf(stage);
      }
      need = std::max(need, sum);
    }
    const auto peak = static_cast<int64_t>(free_run->ranks[rank].peak_activation_bytes) +
                      (1 + s.MaxStaleness()) * s.microbatches * all;
    memory.budget.push_back(s.order.empty() && !s.precedes ? need + static_cast<int64_t>(rng() % (need + 1))
                                                           : std::max(peak, need));
  }
  c->schedule.terms.memory = memory;
}

using Times = std::map<Job, SimulatedJob>;

// Returns the most bytes of a rank, of activations and of gradients that leave it and have not been taken,
// which is when those of all earlier micro-batches have been made.
int64_t MostBytes(const Graph& graph, const Times& times, Rank rank) {
  const ActivationMemory& memory = *graph.terms().memory;
  std::vector<std::tuple<double, bool, int64_t>> changes;  // of one instant those that free come first
  for (const auto& [forward, t] : times) {
    if (forward.kind != JobKind::kForward || t.rank != rank || graph.HasRemoteBackward(forward)) continue;
    const int64_t activation = memory.activation_bytes[forward.stage];
    Job backward = forward;
    backward.kind = graph.final_backward();
    const double made = times.at(backward).end;
    changes.emplace_back(t.start, true, activation);
    changes.emplace_back(made, false, -activation);
    if (!graph.protocol(forward.stage).gradients_leave()) continue;
    double taken = 0;
    for (; backward.microbatch >= 0; --backward.microbatch) taken = std::max(taken, times.at(backward).end);
    if (taken <= made) continue;
    changes.emplace_back(made, true, memory.GradientOf(forward.stage));
    changes.emplace_back(taken, false, -memory.GradientOf(forward.stage));
  }
  std::sort(changes.begin(), changes.end());
  int64_t bytes = 0, most = 0;
  for (const auto& [time, takes, change] : changes) most = std::max(most, bytes += change);
  return most;
}

// Returns when each job had all its inputs, transfers on idle links assumed: a lower bound of readiness,
// exact without links.
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
  const StepEdges successors(graph);
  for (const auto& [job, t] : times) {
    ASSERT_GE(t.start, InputsAt(graph, times, job)) << Describe(job);
    std::vector<Edge> edges;
    graph.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (e.from.step < 0) continue;
      std::vector<Edge> back;
      successors.AppendSuccessors(graph, e.from, &back);
      // clang 14 cannot capture a structured binding by reference.
      const auto same = [&, &job = job](const Edge& o) {
        return o.to == job && o.tensor == e.tensor && o.part == e.part;
      };
      ASSERT_EQ(std::count_if(back.begin(), back.end(), same), 1)
          << Describe(e.from) << " does not name " << Describe(job) << " as its successor once";
    }
  }
}

// One job at a time, but for a backward beside the one forward that its order pairs it with.
void CheckOneAtATime(const Graph& graph, const SimulationResult& run) {
  std::map<Rank, double> busy_until;
  std::map<Rank, SimulatedJob> last;
  for (const SimulatedJob& j : run.jobs) {
    if (j.start == j.end) continue;
    if (graph.MarksOf(j.job) & kOverlapsForward) {
      const SimulatedJob& forward = last[j.rank];
      ASSERT_EQ(forward.job.kind, JobKind::kForward) << Describe(j.job);
      ASSERT_EQ(graph.PriorityOf(forward.job) + 1, graph.PriorityOf(j.job)) << Describe(j.job);
    } else {
      ASSERT_GE(j.start, busy_until[j.rank]) << Describe(j.job) << " overlaps another job of rank " << j.rank;
    }
    busy_until[j.rank] = std::max(busy_until[j.rank], j.end);
    last[j.rank] = j;
  }
}

int AliveAt(const Graph& graph, const SimulationResult& run, const Times& times, Rank rank, int stage,
            double at) {
  int alive = 0;
  for (const SimulatedJob& j : run.jobs) {
    if (j.job.kind != JobKind::kForward || j.rank != rank || j.job.stage != stage || j.start > at) continue;
    Job backward = j.job;
    backward.kind = graph.final_backward();
    alive += times.at(backward).end > at;
  }
  return alive;
}

void CheckLimits(const Graph& graph, const SimulationResult& run, const Times& times) {
  const Schedule& s = graph.schedule();
  if (!s.limit) return;
  for (const SimulatedJob& j : run.jobs) {
    if (j.job.kind != JobKind::kForward) continue;
    const auto limit = s.limit(j.rank, j.job.stage);
    if (limit.has_value()) {
      ASSERT_LE(AliveAt(graph, run, times, j.rank, j.job.stage, j.start), *limit) << Describe(j.job);
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
      // It may have waited for the turn of those claimed before it.
      if (limited && NeedsClaimOrder(graph) && graph.schedule().limit(later.rank, later.job.stage)) continue;
      if (limited && AliveAt(graph, run, times, later.rank, later.job.stage, other.start) >=
                         graph.schedule().limit(later.rank, later.job.stage).value_or(1 << 30)) {
        continue;
      }
      ASSERT_LT(graph.PriorityOf(other.job), graph.PriorityOf(later.job))
          << Describe(other.job) << " at " << other.start << " went before " << Describe(later.job)
          << ", ready at " << ready;
    }
  }
}

// Each rank starts the jobs of its list, in every step anew, and nothing else but reduce and update.
void CheckReplay(const Graph& graph, const SimulationResult& run, int steps) {
  const auto& orders = graph.schedule().order;
  std::vector<std::vector<Job>> started(orders.size());
  for (const SimulatedJob& j : run.jobs) {
    if (HasMicrobatch(j.job.kind)) started[j.rank].push_back(j.job);
  }
  for (size_t r = 0; r < orders.size(); ++r) {
    ASSERT_EQ(started[r].size(), orders[r].size() * steps);
    for (size_t i = 0; i < started[r].size(); ++i) {
      Job listed = orders[r][i % orders[r].size()];
      listed.step = static_cast<int>(i / orders[r].size());
      ASSERT_EQ(started[r][i], listed) << "rank " << r << " started " << Describe(started[r][i])
                                       << " where its order has " << Describe(listed);
    }
  }
}

// Checks that a rank under strict replay is idle only while the next job of its order, and every reduce and
// update, waits.
void CheckNoLaziness(const Graph& graph, const SimulationResult& run, const Times& times) {
  std::map<Rank, double> free_at;
  for (const SimulatedJob& j : run.jobs) {
    const bool overlapped = graph.MarksOf(j.job) & kOverlapsForward;
    if (!overlapped && j.start > free_at[j.rank]) {
      ASSERT_EQ(j.start, InputsAt(graph, times, j.job))
          << Describe(j.job) << " started late on rank " << j.rank;
    }
    free_at[j.rank] = std::max(free_at[j.rank], j.end);
  }
}

TEST(SimulatedRun, RandomFamiliesSizesAndDurations_ObeyTheGraphTheRuleAndTheLimits) {
  const char* only = std::getenv("WEFT_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 400;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const RandomCase c = DrawCase(seed);
    SCOPED_TRACE(c.text);
    ASSERT_TRUE(CheckSchedule(c.schedule).ok()) << CheckSchedule(c.schedule);
    const Graph graph(c.schedule, c.options.steps);
    const auto run = Simulate(graph, c.options);
    ASSERT_TRUE(run.ok()) << run.status();
    Times times;
    for (const SimulatedJob& j : run->jobs)
      ASSERT_TRUE(times.emplace(j.job, j).second) << Describe(j.job) << " ran twice";
    ASSERT_EQ(static_cast<int64_t>(times.size()), int64_t{graph.jobs_per_step()} * c.options.steps);
    CheckGraphObeyed(graph, times);
    CheckOneAtATime(graph, *run);
    CheckLimits(graph, *run, times);
    if (graph.replays()) CheckReplay(graph, *run, c.options.steps);
    const bool links = c.options.latency > 0 || c.options.bandwidth > 0;
    if (!links && graph.replays()) CheckNoLaziness(graph, *run, times);
    if (!links && !graph.replays()) CheckGreedy(graph, *run, times);
    if (HasFatalFailure()) return;
  }
}

// A run with a budget stays within it and does the same jobs, or is refused with the bytes.
TEST(SimulatedRun, RandomBudgets_AreKeptOrRefusedWithTheBytes) {
  int kept = 0, refused = 0, slower = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    RandomCase c = DrawCase(seed);
    SCOPED_TRACE(c.text);
    std::mt19937_64 rng(seed);
    c.options.activation = {static_cast<double>(1 + rng() % 20)};
    c.options.weight = {static_cast<double>(rng() % 40)};
    c.options.state = {static_cast<double>(rng() % 40)};
    const Graph graph(c.schedule);
    const auto free = Simulate(graph, c.options);
    ASSERT_TRUE(free.ok()) << free.status();
    double most = 0;
    for (const RankStats& r : free->ranks) most = std::max(most, r.held_bytes + r.peak_activation_bytes);
    c.options.memory = most * static_cast<double>(40 + rng() % 70) / 100;
    const auto run = Simulate(graph, c.options);
    if (!run.ok()) {
      ++refused;
      ASSERT_LT(c.options.memory, most) << run.status();
      ASSERT_EQ(run.status().code(), absl::StatusCode::kFailedPrecondition);
      ASSERT_NE(run.status().message().find("does not fit: "), absl::string_view::npos) << run.status();
      continue;
    }
    ++kept;
    slower += run->makespan > free->makespan;
    for (const RankStats& r : run->ranks) {
      ASSERT_LE(r.held_bytes + r.peak_activation_bytes, c.options.memory * (1 + 1e-12));
    }
    ASSERT_EQ(run->jobs.size(), free->jobs.size());
  }
  EXPECT_GT(kept, 50);
  EXPECT_GT(refused, 50);
  EXPECT_GT(slower, 5);
}

TEST(SimulatedRun, RandomBudgetsOfBytes_AreKeptAndDeadlockNobody) {
  const char* only = std::getenv("WEFT_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 400;
  int tight = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    RandomCase c = DrawCase(seed);
    const double free_makespan = Simulate(Graph(c.schedule), c.options)->makespan;
    DrawMemory(seed, &c);
    SCOPED_TRACE(c.text);
    ASSERT_TRUE(CheckSchedule(c.schedule).ok()) << CheckSchedule(c.schedule);
    const Graph graph(c.schedule, c.options.steps);
    const auto run = Simulate(graph, c.options);
    ASSERT_TRUE(run.ok()) << run.status();
    Times times;
    for (const SimulatedJob& j : run->jobs) times.emplace(j.job, j);
    ASSERT_EQ(static_cast<int64_t>(times.size()), int64_t{graph.jobs_per_step()} * c.options.steps);
    CheckGraphObeyed(graph, times);
    if (graph.replays()) CheckReplay(graph, *run, c.options.steps);
    for (Rank rank = 0; rank < c.schedule.scheme.ranks; ++rank) {
      ASSERT_LE(run->ranks[rank].peak_activation_bytes, c.schedule.terms.memory->budget[rank]);
      ASSERT_LE(MostBytes(graph, times, rank), c.schedule.terms.memory->budget[rank]);
    }
    tight += run->makespan > free_makespan;
    if (HasFatalFailure()) return;
  }
  if (only == nullptr) {
    EXPECT_GT(tight, 50) << "hardly any budget held anything back: the test shows nothing";
  }
}

TEST(SimulatedRun, ClaimOrder_IsATopologicalOrderOfTheStep) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    RandomCase c = DrawCase(seed % 100);
    if (seed > 100) DrawMemory(seed % 100, &c);
    SCOPED_TRACE(c.text);
    const Graph graph(c.schedule, /*steps=*/1);
    const auto steps = ClaimOrder(graph);
    ASSERT_TRUE(steps.ok()) << steps.status();
    const auto* order = &steps->front();
    // Walk all ranks' lists greedily: if every list can be emptied, no rank starves another.
    std::vector<size_t> next(order->size(), 0);
    std::map<Job, bool> done;
    size_t remaining = graph.jobs_per_step();
    for (bool moved = true; moved && remaining > 0;) {
      moved = false;
      for (size_t r = 0; r < order->size(); ++r) {
        // Fixed orders are claimed as they are listed.
        if (graph.replays() && next[r] == 0) {
          std::vector<Job> compute;
          std::copy_if((*order)[r].begin(), (*order)[r].end(), std::back_inserter(compute),
                       [](const Job& j) { return HasMicrobatch(j.kind); });
          ASSERT_EQ(compute, c.schedule.scheme.order[r]);
        }
        while (next[r] < (*order)[r].size()) {
          const Job job = (*order)[r][next[r]];
          std::vector<Edge> edges;
          graph.Predecessors(job, &edges);
          const bool ready = std::all_of(edges.begin(), edges.end(),
                                         [&](const Edge& e) { return e.from.step < 0 || done[e.from]; });
          if (!ready) break;
          done[job] = true;
          ++next[r];
          --remaining;
          moved = true;
        }
      }
    }
    ASSERT_EQ(remaining, 0u);
  }
}

}  // namespace
}  // namespace weft::schedule_property_test
