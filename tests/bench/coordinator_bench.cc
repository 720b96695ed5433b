// Measures how fast the coordinator's core hands out jobs and takes them back, without any wire: jobs per
// second for runs of 10^4, 10^5 and 10^6 jobs, and the resident memory, which must not depend on the number
// of steps.
//
// The schedule is 1f1b on 8 ranks with 62 micro-batches: 1,000 jobs a step. One job "granted and completed"
// is the item that is counted.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/core/coordinator_core.h"
#include "schedules/families/families.h"
#include "tests/bench/resident_memory.h"
#include "tests/unit/without_terms.h"

namespace weft {
namespace {

constexpr int kStages = 8, kMicrobatches = 62, kJobsPerStep = 1000, kCredit = 512;

std::shared_ptr<const RunPlan> Plan(int steps) {
  auto plan =
      MakeRunPlan("bench", "1f1b", WithoutTerms(*MakeSchedule("1f1b", {}, kStages, kMicrobatches)), steps);
  if (!plan.ok() || (*plan)->graph.jobs_per_step() != kJobsPerStep) std::abort();
  return *plan;
}

// The queue alone: grants and completions as plain calls.
void BM_WorkQueue(benchmark::State& state) {
  const int steps = static_cast<int>(state.range(0)) / kJobsPerStep;
  const auto plan = Plan(steps);
  for (auto _ : state) {
    WorkQueue queue(plan);
    std::vector<Job> jobs;
    std::vector<WorkQueue::EndedStep> ended;
    while (!queue.all_done()) {
      for (Rank rank = 0; rank < kStages; ++rank) {
        jobs.clear();
        queue.Grant(rank, kCredit, &jobs);
        for (const Job& job : jobs) {
          if (queue.Complete(rank, {job, 0, 1, 0, false}) != WorkQueue::Outcome::kDone) std::abort();
        }
      }
      ended.clear();
      queue.TakeEndedSteps(&ended);
    }
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.counters["resident_MiB"] = ResidentMiB();
}
BENCHMARK(BM_WorkQueue)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

// The whole core: session messages in, effects out, as the server's loop does it.
void BM_Core(benchmark::State& state) {
  const int steps = static_cast<int>(state.range(0)) / kJobsPerStep;
  const int credit = static_cast<int>(state.range(1));
  const auto plan = Plan(steps);
  for (auto _ : state) {
    CoordinatorCore core(CoreOptions{});
    int64_t now = 1;
    std::vector<Event> events;
    events.push_back(SessionOpened{1});
    events.push_back(SessionMessage{1, Hello{"worker", "host", 1, -1, ""}});
    events.push_back(SubmitRun{1, "", plan, "{}", 1, ""});
    bool finished = false;
    while (!finished) {
      Effects effects = core.Step(++now, std::exchange(events, {}));
      for (OutgoingMessage& m : effects.messages) {
        if (auto* grant = std::get_if<Grant>(&m.message)) {
          Completions done{grant->run, grant->rank, grant->token, {}};
          done.jobs.reserve(grant->jobs.size());
          for (const Job& job : grant->jobs) done.jobs.push_back({job, now, now + 1, 0, false});
          events.push_back(SessionMessage{1, std::move(done)});
        } else if (const auto* assign = std::get_if<Assign>(&m.message)) {
          events.push_back(SessionMessage{1, Prepared{assign->run}});
          for (const RankLease& l : assign->leases)
            events.push_back(SessionMessage{1, Credit{assign->run, l.rank, l.token, credit}});
        } else if (std::holds_alternative<Finish>(m.message)) {
          finished = true;
        }
      }
      if (events.empty() && !finished) std::abort();
    }
    if (core.probe().grants != static_cast<uint64_t>(state.range(0))) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.counters["resident_MiB"] = ResidentMiB();
}
BENCHMARK(BM_Core)
    ->ArgNames({"jobs", "credit"})
    ->ArgsProduct({{10'000, 100'000, 1'000'000}, {4, kCredit}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
