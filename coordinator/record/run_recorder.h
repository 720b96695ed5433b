// Records a coordinator's reports about one run, for progress, traces and the summary.
//
// Memory is bounded whatever the length of the run: the jobs of the last steps, the last durations of each
// stage and kind, one number a step; of loss and memory, a history that is thinned.
//
// Threads: the On.. methods are called on the coordinator's thread and only copy; the others on the thread
// that shows and writes. `wake` is called, on the coordinator's thread, when there is something new to look
// at.
#ifndef WEFT_COORDINATOR_RECORD_RUN_RECORDER_H_
#define WEFT_COORDINATOR_RECORD_RUN_RECORDER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "coordinator/core/events.h"
#include "coordinator/record/run_history.h"
#include "schedules/drawing/drawing.h"

namespace weft {

struct StepRecord {
  int32_t step = 0;
  double loss = 0;
  bool has_loss = false;
  // Time since the end of the step before; for the first, since its first job's start.
  double seconds = 0;
  double end_seconds = 0;                    // time since the first job's start
  std::optional<double> gradient_norm = {};  // norm before it was clipped, of runs that take it
  bool skipped = false;                      // true if its updates were left out (train.non_finite: skip)
};

inline constexpr size_t kTracedJobs = 200'000;  // most jobs kept for the trace of a run

class RunRecorder {
 public:
  // `records_hashes`: keeps the hashes of jobs until TakeHashes.
  RunRecorder(int stages, size_t max_jobs, std::function<void()> wake, bool records_hashes = false);

  // Takes up what a store has of a run whose coordinator was started again: the start of its first job, and
  // its steps and validations, as if they had been reported.
  void TakeUp(int64_t first_start_ns, const std::vector<StepDone>& steps,
              const std::vector<Validation>& validations);

  void OnRun(const RunInfo& run);
  void OnStep(const StepDone& step);
  void OnValidation(const Validation& validation);
  void OnJobs(const JobsEnded& jobs);
  void OnReport(const Report& report);
  void OnSpans(const Spans& spans);
  void OnSpansComplete();
  void OnSlowJob(const SlowJob& slow);
  void OnLog(const RunLogLine& line);
  void OnReplanned(const Replanned& replanned);

  // Returns the latest known state; its reports are the latest of each rank.
  RunInfo run() const;
  // Returns whether all has been reported: the run has finished, or has ended otherwise and its processes
  // have reported their last spans.
  bool is_complete() const;
  // Returns the steps that ended since the last call.
  std::vector<StepRecord> TakeSteps();
  // Returns the validations that are done since the last call.
  std::vector<Validation> TakeValidations();
  // Returns the jobs that ended since the last call, with their hashes, in a run that records them.
  std::vector<JobHashes> TakeHashes();
  // Returns the sentences about slow jobs since the last call; of many, the last.
  std::vector<std::string> TakeSlowJobs();
  // Returns the lines of the log since the last call; of very many, the last.
  std::vector<RunLogLine> TakeLog();
  // Returns the times since the last call that the run went on under another schedule.
  std::vector<Replanned> TakeReplanned();
  // Returns the plan under which the run went on last; null if it is still its first.
  std::shared_ptr<const RunPlan> replanned() const;
  // Returns the loss and the memory up to now.
  RunHistory history() const;
  // Returns the jobs of whole steps, in seconds since the first job's start.
  std::vector<DrawnJob> LastJobs() const;
  // Returns the start of the first job, by the monotonic clock; nothing before it has ended.
  std::optional<int64_t> first_start_ns() const;
  // Return the idle times and transfers during these jobs, likewise, as far as workers have reported them;
  // they do when the run ends, however it ends, and when they are asked.
  std::vector<IdleInterval> LastIdle() const;
  std::vector<TransferInterval> LastTransfers() const;
  // Returns the mean duration of each kind and stage in seconds, over its last jobs without the slowest and
  // the fastest twentieth (at least one each); 0 where there was none. It is not the median: jobs are late
  // more often than early, and a step pays for the late ones.
  std::array<std::vector<double>, kJobKinds> TypicalDurations() const;

 private:
  static constexpr size_t kSamples = 512;
  struct Samples {
    std::vector<float> seconds;
    size_t next = 0;
  };
  struct Ended {
    Job job;
    Rank rank;
    int64_t start_ns, end_ns, delay_ns;
  };

  const size_t max_jobs_;
  const std::function<void()> wake_;
  const bool records_hashes_;
  mutable Mutex mu_;
  RunInfo run_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, RankReport> reports_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> slow_jobs_ ABSL_GUARDED_BY(mu_);
  std::deque<RunLogLine> log_ ABSL_GUARDED_BY(mu_);
  std::vector<Replanned> replans_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const RunPlan> replanned_ ABSL_GUARDED_BY(mu_);
  RunHistory history_ ABSL_GUARDED_BY(mu_);
  std::vector<StepRecord> steps_ ABSL_GUARDED_BY(mu_);
  std::vector<Validation> validations_ ABSL_GUARDED_BY(mu_);
  std::vector<JobHashes> hashes_ ABSL_GUARDED_BY(mu_);
  // Spans the time from the start of the first of LastJobs to the end of the last; nothing where there are
  // none.
  struct Window {
    int64_t start_ns, end_ns;
  };
  void ForgetJobsFrom(int32_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Window> JobsKept() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::deque<Ended> jobs_ ABSL_GUARDED_BY(mu_);
  int32_t dropped_step_ ABSL_GUARDED_BY(mu_) = -1;  // latest step of which a job was dropped
  bool spans_complete_ ABSL_GUARDED_BY(mu_) = false;
  std::map<Rank, std::vector<IdleSpan>> idle_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, std::vector<TransferSpan>> transfers_ ABSL_GUARDED_BY(mu_);
  int64_t first_start_ns_ ABSL_GUARDED_BY(mu_) = INT64_MAX;
  int64_t last_end_ns_ ABSL_GUARDED_BY(mu_) = 0;  // end of the last step done
  std::array<std::vector<Samples>, kJobKinds> samples_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_RECORDER_H_
