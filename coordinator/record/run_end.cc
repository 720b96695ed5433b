#include "coordinator/record/run_end.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "coordinator/record/loss_curve.h"
#include "nlohmann/json.hpp"

namespace weft {

RunRecord RecordOf(const RunSpec& spec, const std::string& file, const std::string& state, size_t steps_made,
                   const std::string& reason) {
  RunRecord record;
  record.name = spec.name;
  record.file = file;
  record.state = state;
  record.reason = reason;
  record.first_step = spec.first_step();
  record.end_step = spec.end_step();
  record.steps_done = record.first_step + static_cast<int>(steps_made);
  record.spec = ToJson(spec).dump();
  return record;
}

namespace {

// Drops the jobs of steps that have not ended. Steps from `first` on follow the schedule; earlier ones have
// ended.
void KeepWholeSteps(const RunSchedule& schedule, int32_t first, std::vector<DrawnJob>* jobs) {
  const int all = Graph(schedule).jobs_per_step();
  std::map<int32_t, int> made;
  for (const DrawnJob& j : *jobs) ++made[j.job.step];
  std::erase_if(*jobs, [&](const DrawnJob& j) { return j.job.step >= first && made[j.job.step] < all; });
}

// Drops intervals that ended before the first of the jobs began.
template <class Interval>
void DropBefore(const std::vector<DrawnJob>& jobs, std::vector<Interval>* intervals) {
  double first = std::numeric_limits<double>::infinity();
  for (const DrawnJob& j : jobs) first = std::min(first, j.start);
  std::erase_if(*intervals, [&](const Interval& i) { return i.end <= first; });
}

// Returns true if run.json says how the run has ended. The folder of a run without work is gone by now.
bool SaysTheEnd(const OutputFolder& output, const RunRecord& record) {
  const RunRecord left = ReadRecord(output.live());
  return left.name.empty() || left.state == record.state;
}

// Adds the figures that come from the run's steps.
void AddSteps(const StepLog& log, TrainResults* results) {
  results->step_seconds = log.seconds();
  results->first_loss = log.first_loss();
  results->final_loss = log.last_loss();
  results->validation = log.validation();
  results->skipped_steps = log.losses().skipped_steps();
  results->seconds = log.end_seconds();
}

}  // namespace

TrainResults ResultsSoFar(const RunSpec& first_spec, const RunSchedule& first_schedule,
                          const RunRecorder& recorder) {
  const std::shared_ptr<const RunPlan> replanned = recorder.replanned();
  const RunSchedule& schedule = replanned == nullptr ? first_schedule : replanned->graph.run_schedule();
  TrainResults results;
  results.spec = replanned == nullptr ? first_spec : *replanned->spec;
  results.ranks = schedule.scheme.ranks;
  const RunInfo run = recorder.run();
  results.reports = run.reports;
  const std::optional<int64_t> start = recorder.first_start_ns();
  if (!start.has_value()) return results;  // no job has ended
  results.first_start_unix_ns = *start + UnixMinusMonotonic();
  results.jobs = recorder.LastJobs();
  KeepWholeSteps(schedule, run.restart_step, &results.jobs);
  results.idle = recorder.LastIdle();
  results.transfers = recorder.LastTransfers();
  std::set<int> kept;
  for (const DrawnJob& j : results.jobs) kept.insert(j.job.step);
  const auto predicted = PredictionFrom(schedule, results.spec.steps_to_make(), static_cast<int>(kept.size()),
                                        CostsOfRun(results.spec, schedule, recorder.TypicalDurations()));
  if (predicted.ok()) results.predicted = *predicted;
  return results;
}

absl::StatusOr<RunTrace> TraceSoFar(const RunSpec& spec, const RunSchedule& schedule,
                                    const RunRecorder& recorder) {
  const TrainResults results = ResultsSoFar(spec, schedule, recorder);
  if (results.jobs.empty()) return absl::FailedPreconditionError("it has ended no step yet");
  return RunTrace{ToJson(results.spec).dump(), TraceText(results)};
}

TrainResults ResultsOf(const RunSpec& spec, const StepLog& log) {
  TrainResults results;
  results.spec = spec;
  AddSteps(log, &results);
  return results;
}

TrainResults ResultsOf(const RunSpec& spec, const RunSchedule& schedule, int processes,
                       const RunRecorder& recorder, const StepLog& log) {
  TrainResults results = ResultsSoFar(spec, schedule, recorder);
  AddSteps(log, &results);
  results.processes = processes;
  const RunInfo run = recorder.run();
  results.reduction = run.reduction;
  results.restarts = run.restarts;
  results.non_finite_steps = run.non_finite_steps;
  return results;
}

EndedRun LeaveResults(const TrainResults& results, const RunRecord& record, OutputFolder* output,
                      StepLog* log) {
  EndedRun ended_run;
  const absl::Status there = output->StillThere();
  ended_run.folder_gone = !there.ok();
  if (absl::IsAborted(there)) {
    ended_run.status = there;
    return ended_run;
  }
  if (ended_run.folder_gone) {
    // The workers have made it again for the checkpoint.
    std::error_code ignored;
    std::filesystem::create_directories(output->live(), ignored);
  }
  output->ReleaseReserve();
  const absl::Status summary = WriteSummary(results, output->live());
  const absl::Status steps = log->Finish();
  if (!steps.ok()) ended_run.lost.emplace_back(steps.message());
  for (std::string& trace : WriteTraces(results, output->live())) ended_run.lost.push_back(std::move(trace));
  if (ended_run.folder_gone) {
    const std::string holds = DescribeWork(output->live());
    ended_run.status = absl::UnavailableError(
        absl::StrCat("the run finished, but ", there.message(), "; ",
                     holds.empty() ? "nothing of it is left"
                                   : absl::StrCat("what could be written again is in ", output->live())));
    return ended_run;
  }
  const auto ended = output->End(record);
  if (!summary.ok()) {
    ended_run.status = absl::UnavailableError(
        absl::StrCat(summary.message(), "; the run finished, and ", output->shown(), "/checkpoint is whole"));
  } else if (!ended.ok()) {
    ended_run.status = absl::UnavailableError(
        absl::StrCat(ended.status().message(), "; the run finished, its results are in ", output->live()));
  }
  ended_run.complete = steps.ok() && ended_run.status.ok() && SaysTheEnd(*output, record);
  return ended_run;
}

UnfinishedRun LeaveUnfinished(TrainResults so_far, const RunRecord& record, OutputFolder* output,
                              StepLog* log) {
  // They are drawn in a fraction of a second: a user who has pressed Ctrl-C waits.
  constexpr size_t kJobsDrawn = 20'000;
  so_far.jobs = LastSteps(so_far.jobs, kJobsDrawn);
  DropBefore(so_far.jobs, &so_far.idle);
  DropBefore(so_far.jobs, &so_far.transfers);
  absl::Status steps = output->StillThere();
  if (steps.ok()) {
    steps = log->Finish();
    if (!log->seconds().empty()) {
      WriteTraces(so_far, output->live());
      WriteLossPicture(output->live(), absl::StrCat(record.name, ": loss, ", record.state)).IgnoreError();
    }
  }
  output->ReleaseReserve();
  const auto ended = output->End(record);
  if (!ended.ok()) return {std::string(ended.status().message())};
  return {*ended, steps.ok() && SaysTheEnd(*output, record)};
}

}  // namespace weft
