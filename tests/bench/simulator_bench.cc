// Measures the simulator: jobs per second at 10^4, 10^6 and 10^7 jobs of unit durations, the memory, which
// must not depend on the number of steps, the time of comparing all families at S = 8, B = 32, and that of
// checking and planning a run of 1000 stages and micro-batches.
//
// The schedule is 1f1b on 8 ranks with 62 micro-batches: 1,000 jobs a step. For comparison it times the least
// work of such a simulation: a heap of the ends of 8 jobs at a time, and a worklist over the edges of the
// same jobs, which knows no time.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "schedules/check/check.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/families/candidates.h"
#include "schedules/families/families.h"
#include "schedules/graph/progress.h"
#include "schedules/simulator/event_queue.h"
#include "schedules/simulator/simulate.h"
#include "tests/bench/resident_memory.h"
#include "tests/unit/without_terms.h"

namespace weft {
namespace {

constexpr int kStages = 8, kMicrobatches = 62, kJobsPerStep = 1000;

void Simulate(benchmark::State& state, const char* family, int stages, SimulationOptions options = {}) {
  const Graph graph(WithoutTerms(*MakeSchedule(family, {}, stages, kMicrobatches)));
  options.steps = static_cast<int>(state.range(0)) / kJobsPerStep;
  int64_t jobs = 0;
  for (auto _ : state) {
    auto run = weft::Simulate(graph, options);
    if (!run.ok()) std::abort();
    benchmark::DoNotOptimize(run->makespan);
    jobs += int64_t{graph.jobs_per_step()} * options.steps;
  }
  state.SetItemsProcessed(jobs);
  state.counters["resident_MiB"] = ResidentMiB();
}

void BM_OneForwardOneBackward(benchmark::State& state) { Simulate(state, "1f1b", kStages); }
BENCHMARK(BM_OneForwardOneBackward)
    ->Arg(10'000)
    ->Arg(1'000'000)
    ->Arg(10'000'000)
    ->Unit(benchmark::kMillisecond);

// Durations that are not whole, so that few jobs end together.
void BM_OneForwardOneBackwardUneven(benchmark::State& state) {
  SimulationOptions options;
  options.duration[static_cast<int>(JobKind::kForward)] = {1.03, 0.97, 1.01, 1.04, 0.99, 0.98, 1.02, 1.05};
  options.duration[static_cast<int>(JobKind::kBackward)] = {2.03, 1.97, 2.01, 2.04, 1.99, 1.98, 2.02, 2.05};
  Simulate(state, "1f1b", kStages, options);
}
BENCHMARK(BM_OneForwardOneBackwardUneven)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

// A fixed order with split backwards: 1,496 jobs a step.
void BM_ZeroBubble(benchmark::State& state) { Simulate(state, "zb_h1", kStages); }
BENCHMARK(BM_ZeroBubble)->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

// The same over links, where the order alone does not say when a job starts.
void BM_ZeroBubbleOverLinks(benchmark::State& state) {
  SimulationOptions options;
  options.activation = {1000};
  options.bandwidth = 100'000;
  Simulate(state, "zb_h1", kStages, options);
}
BENCHMARK(BM_ZeroBubbleOverLinks)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

// Takes the end of a job from a heap and adds the end of the next one on its rank.
void BareEventQueue(benchmark::State& state, const std::vector<double>& durations) {
  EventQueue events;
  for (int rank = 0; rank < kStages; ++rank) events.AddEnd(durations[rank], MakeJobId(0, rank));
  int64_t jobs = 0;
  for (auto _ : state) {
    for (int i = 0; i < 1'000'000; ++i) {
      const double now = events.time();
      const EventQueue::Event event = events.Take();
      events.AddEnd(now + durations[IndexOf(event.job)], event.job);
    }
    jobs += 1'000'000;
  }
  state.SetItemsProcessed(jobs);
}

void BM_BareEventQueue(benchmark::State& state) { BareEventQueue(state, std::vector<double>(kStages, 1)); }
BENCHMARK(BM_BareEventQueue)->Unit(benchmark::kMillisecond);

void BM_BareEventQueueUneven(benchmark::State& state) {
  BareEventQueue(state, {1.03, 0.97, 1.01, 1.04, 0.99, 0.98, 1.02, 1.05});
}
BENCHMARK(BM_BareEventQueueUneven)->Unit(benchmark::kMillisecond);

void BM_BareWorklist(benchmark::State& state) {
  const Graph graph(WithoutTerms(*MakeSchedule("1f1b", {}, kStages, kMicrobatches)));
  int64_t jobs = 0;
  for (auto _ : state) {
    state.PauseTiming();
    StepProgress progress(graph, {});
    progress.Open(999);
    state.ResumeTiming();
    jobs += ForEachInOrder(
        &progress, [](JobId) {}, [](JobId, JobId) {}, [](int) { return -1; });
  }
  state.SetItemsProcessed(jobs);
}
BENCHMARK(BM_BareWorklist)->Unit(benchmark::kMillisecond);

void BM_CompareAllFamilies(benchmark::State& state) {
  int schedules = 0;
  for (auto _ : state) {
    schedules = 0;
    for (const Candidate& c : Candidates(8, 32)) {
      const auto schedule = MakeSchedule(c.name, c.parameters, 8, 32);
      if (!schedule.ok() || !CheckSchedule(WithoutTerms(*schedule)).ok()) continue;
      SimulationOptions options;
      options.steps = 4;
      if (!weft::Simulate(Graph(WithoutTerms(*schedule)), options).ok()) std::abort();
      ++schedules;
    }
  }
  state.counters["schedules"] = schedules;
}
BENCHMARK(BM_CompareAllFamilies)->Unit(benchmark::kMillisecond);

// Measures what a coordinator does with a large run before it takes it in: 2,001,000 jobs a step.
void BM_CheckAndPlanLarge(benchmark::State& state) {
  const auto schedule = MakeSchedule("1f1b", {}, 1000, 1000);
  for (auto _ : state) {
    const auto tables = CheckedTables(WithoutTerms(*schedule));
    if (!tables.ok() || !ClaimOrder(Graph(WithoutTerms(*schedule)), *tables).ok()) std::abort();
  }
  state.counters["resident_MiB"] = ResidentMiB();
}
BENCHMARK(BM_CheckAndPlanLarge)->Unit(benchmark::kMillisecond);

void BM_StepEdgesLarge(benchmark::State& state) {
  const Graph graph(WithoutTerms(*MakeSchedule("1f1b", {}, 1000, 1000)));
  for (auto _ : state) benchmark::DoNotOptimize(StepEdges(graph).max_distance());
}
BENCHMARK(BM_StepEdgesLarge)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
