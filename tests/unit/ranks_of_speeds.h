// Makes small runs whose ranks have given speeds, with the times of their jobs, for tests of replanning.
#ifndef WEFT_TESTS_UNIT_RANKS_OF_SPEEDS_H_
#define WEFT_TESTS_UNIT_RANKS_OF_SPEEDS_H_

#include <optional>
#include <string>
#include <vector>

#include "coordinator/replanning/better_schedule.h"
#include "coordinator/replanning/measured_jobs.h"
#include "run/run_schedule.h"
#include "tests/unit/small_run_spec.h"

namespace weft {

inline RunSpec RunUnder(const std::string& schedule, int microbatches, const Json& stages = 6) {
  Json run = With("/train/microbatches", microbatches);
  run["train"]["batch"] = microbatches;
  run["stages"] = stages;
  run["schedule"] = schedule;
  auto spec = ParseRunSpec(run);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// Returns the jobs of a step of the run, as ranks of these speeds do them: a forward in 1 s, a backward in 2,
// or each half of it in 1.
inline MeasuredJobs JobsAt(const RunSpec& run, const std::vector<double>& speeds) {
  const auto schedule = ScheduleOf(run);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  MeasuredJobs jobs(schedule->scheme.ranks, run.stages());
  for (int s = 0; s < run.stages(); ++s) {
    for (int b = 0; b < run.train.microbatches; ++b) {
      const auto add = [&](JobKind kind, double seconds) {
        const Job job = Job::Compute(0, s, b, kind);
        const Rank rank = schedule->scheme.compute(job);
        jobs.Add(rank, job, seconds / speeds[rank]);
      };
      add(JobKind::kForward, 1);
      if (!schedule->scheme.split_backward) {
        add(JobKind::kBackward, 2);
        continue;
      }
      add(JobKind::kBackwardInput, 1);
      add(JobKind::kBackwardWeight, 1);
    }
  }
  return jobs;
}

inline BetterSchedule BetterAt(const RunSpec& run, const std::vector<double>& speeds,
                               std::optional<MeasuredLink> link = std::nullopt) {
  const MeasuredJobs before = JobsAt(run, std::vector<double>(speeds.size(), 1));
  const RankCosts measured = CostsOfJobs(run, JobsAt(run, speeds), &before);
  auto better = FindBetterSchedule({run, measured, link});
  EXPECT_TRUE(better.ok()) << better.status();
  return *better;
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_RANKS_OF_SPEEDS_H_
