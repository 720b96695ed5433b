#include "coordinator/record/run_recorder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/typical_value.h"

namespace weft {

RunRecorder::RunRecorder(int stages, size_t max_jobs, std::function<void()> wake, bool records_hashes)
    : max_jobs_(max_jobs), wake_(std::move(wake)), records_hashes_(records_hashes) {
  MutexLock lock(mu_);
  for (auto& of_kind : samples_) of_kind.resize(stages);
}

void RunRecorder::TakeUp(int64_t first_start_ns, const std::vector<StepDone>& steps,
                         const std::vector<Validation>& validations) {
  {
    MutexLock lock(mu_);
    const bool known = first_start_ns != INT64_MAX || steps.empty();
    first_start_ns_ = known ? first_start_ns : steps.front().end_ns;
  }
  for (const StepDone& step : steps) OnStep(step);
  for (const Validation& validation : validations) OnValidation(validation);
}

void RunRecorder::OnRun(const RunInfo& run) {
  {
    MutexLock lock(mu_);
    if (run.restarts > run_.restarts) ForgetJobsFrom(run.restart_step);
    run_ = run;
    for (const RankReport& report : run.reports) reports_[report.rank] = report;
  }
  wake_();
}

// Steps that are made again are drawn once, as they were made last.
void RunRecorder::ForgetJobsFrom(int32_t step) {
  jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), [&](const Ended& e) { return e.job.step >= step; }),
              jobs_.end());
}

void RunRecorder::OnStep(const StepDone& step) {
  {
    MutexLock lock(mu_);
    const int64_t before = last_end_ns_ == 0 ? first_start_ns_ : last_end_ns_;
    steps_.push_back({step.step, step.loss, step.has_loss, static_cast<double>(step.end_ns - before) * 1e-9,
                      static_cast<double>(step.end_ns - first_start_ns_) * 1e-9, step.gradient_norm});
    if (step.has_loss) history_.OnLoss(step.step, step.loss);
    last_end_ns_ = step.end_ns;
    run_.steps_done = std::max(run_.steps_done, step.step + 1);
  }
  wake_();
}

void RunRecorder::OnSlowJob(const SlowJob& slow) {
  constexpr size_t kMost = 16;
  {
    MutexLock lock(mu_);
    slow_jobs_.push_back(slow.sentence);
    if (slow_jobs_.size() > kMost) slow_jobs_.pop_front();
  }
  wake_();
}

void RunRecorder::OnLog(const RunLogLine& line) {
  {
    MutexLock lock(mu_);
    log_.push_back(line);
    if (log_.size() > RunLog::kMostLines) log_.pop_front();
  }
  wake_();
}

void RunRecorder::OnReplanned(const Replanned& replanned) {
  {
    MutexLock lock(mu_);
    replans_.push_back(replanned);
    replanned_ = replanned.plan;
  }
  wake_();
}

std::vector<RunLogLine> RunRecorder::TakeLog() {
  MutexLock lock(mu_);
  std::vector<RunLogLine> taken(log_.begin(), log_.end());
  log_.clear();
  return taken;
}

std::vector<Replanned> RunRecorder::TakeReplanned() {
  MutexLock lock(mu_);
  return std::exchange(replans_, {});
}

std::shared_ptr<const RunPlan> RunRecorder::replanned() const {
  MutexLock lock(mu_);
  return replanned_;
}

std::vector<std::string> RunRecorder::TakeSlowJobs() {
  MutexLock lock(mu_);
  std::vector<std::string> taken(slow_jobs_.begin(), slow_jobs_.end());
  slow_jobs_.clear();
  return taken;
}

void RunRecorder::OnValidation(const Validation& validation) {
  {
    MutexLock lock(mu_);
    validations_.push_back(validation);
    history_.OnValidation(validation);
  }
  wake_();
}

void RunRecorder::OnJobs(const JobsEnded& ended) {
  MutexLock lock(mu_);
  for (const Completion& done : ended.jobs) {
    first_start_ns_ = std::min(first_start_ns_, done.start_ns);
    jobs_.push_back({done.job, ended.rank, done.start_ns, done.end_ns, done.delay_ns});
    if (records_hashes_) {
      hashes_.push_back({done.job, ended.rank, ended.process,
                         done.has_loss ? std::optional(done.loss) : std::nullopt, done.gradient_norm,
                         done.hashes});
    }
    Samples& samples = samples_[static_cast<int>(done.job.kind)][done.job.stage];
    const float seconds = static_cast<float>(static_cast<double>(done.end_ns - done.start_ns) * 1e-9);
    if (samples.seconds.size() < kSamples) {
      samples.seconds.push_back(seconds);
    } else {
      samples.seconds[samples.next] = seconds;
      samples.next = (samples.next + 1) % kSamples;
    }
  }
  while (jobs_.size() > max_jobs_) {
    dropped_step_ = std::max(dropped_step_, jobs_.front().job.step);
    jobs_.pop_front();
  }
}

void RunRecorder::OnReport(const Report& report) {
  MutexLock lock(mu_);
  history_.OnReport(report.ranks);
  for (const RankReport& rank : report.ranks) {
    RankReport& kept = reports_[rank.rank] = rank;
    if (!rank.idle_spans.empty()) idle_[rank.rank] = std::exchange(kept.idle_spans, {});
    if (!rank.transfer_spans.empty()) transfers_[rank.rank] = std::exchange(kept.transfer_spans, {});
  }
}

void RunRecorder::OnSpans(const Spans& spans) {
  MutexLock lock(mu_);
  for (const Spans::OfRank& of_rank : spans.ranks) {
    idle_[of_rank.rank] = of_rank.idle;
    transfers_[of_rank.rank] = of_rank.transfers;
  }
}

void RunRecorder::OnSpansComplete() {
  {
    MutexLock lock(mu_);
    spans_complete_ = true;
  }
  wake_();
}

bool RunRecorder::is_complete() const {
  MutexLock lock(mu_);
  return run_.state == RunState::kFinished || (IsFinal(run_.state) && spans_complete_);
}

RunInfo RunRecorder::run() const {
  MutexLock lock(mu_);
  RunInfo run = run_;
  run.reports.clear();
  for (const auto& [rank, report] : reports_) run.reports.push_back(report);
  return run;
}

RunHistory RunRecorder::history() const {
  MutexLock lock(mu_);
  return history_;
}

std::vector<StepRecord> RunRecorder::TakeSteps() {
  MutexLock lock(mu_);
  return std::exchange(steps_, {});
}

std::vector<Validation> RunRecorder::TakeValidations() {
  MutexLock lock(mu_);
  return std::exchange(validations_, {});
}

std::vector<JobHashes> RunRecorder::TakeHashes() {
  MutexLock lock(mu_);
  return std::exchange(hashes_, {});
}

std::vector<DrawnJob> RunRecorder::LastJobs() const {
  MutexLock lock(mu_);
  std::vector<DrawnJob> jobs;
  for (const Ended& e : jobs_) {
    if (e.job.step <= dropped_step_) continue;
    jobs.push_back({e.job, e.rank, static_cast<double>(e.start_ns - first_start_ns_) * 1e-9,
                    static_cast<double>(e.end_ns - first_start_ns_) * 1e-9,
                    static_cast<double>(e.delay_ns) * 1e-9});
  }
  return jobs;
}

std::optional<int64_t> RunRecorder::first_start_ns() const {
  MutexLock lock(mu_);
  return first_start_ns_ == INT64_MAX ? std::nullopt : std::optional(first_start_ns_);
}

std::optional<RunRecorder::Window> RunRecorder::JobsKept() const {
  Window window = {INT64_MAX, INT64_MIN};
  for (const Ended& e : jobs_) {
    if (e.job.step <= dropped_step_) continue;
    window.start_ns = std::min(window.start_ns, e.start_ns);
    window.end_ns = std::max(window.end_ns, e.end_ns);
  }
  if (window.end_ns < window.start_ns) return std::nullopt;
  return window;
}

std::vector<IdleInterval> RunRecorder::LastIdle() const {
  MutexLock lock(mu_);
  std::vector<IdleInterval> intervals;
  const std::optional<Window> window = JobsKept();
  for (const auto& [rank, spans] : idle_) {
    for (const IdleSpan& span : spans) {
      if (!window.has_value()) break;
      const int64_t start = std::max(span.start_ns, window->start_ns);
      const int64_t end = std::min(span.end_ns, window->end_ns);
      if (start >= end) continue;
      intervals.push_back({rank, span.cause, static_cast<double>(start - first_start_ns_) * 1e-9,
                           static_cast<double>(end - first_start_ns_) * 1e-9});
    }
  }
  return intervals;
}

std::vector<TransferInterval> RunRecorder::LastTransfers() const {
  MutexLock lock(mu_);
  std::vector<TransferInterval> intervals;
  const std::optional<Window> window = JobsKept();
  for (const auto& [rank, spans] : transfers_) {
    for (const TransferSpan& span : spans) {
      // The tensor could leave when it was made and asked for.
      const int64_t start = std::min(span.arrived_ns, std::max(span.wanted_ns, span.made_ns));
      if (!window.has_value() || start < window->start_ns || span.arrived_ns > window->end_ns) continue;
      intervals.push_back(
          {span.from, rank, span.tensor, span.consumer, static_cast<double>(start - first_start_ns_) * 1e-9,
           static_cast<double>(span.arrived_ns - first_start_ns_) * 1e-9, static_cast<double>(span.bytes)});
    }
  }
  return intervals;
}

std::array<std::vector<double>, kJobKinds> RunRecorder::TypicalDurations() const {
  MutexLock lock(mu_);
  std::array<std::vector<double>, kJobKinds> typical;
  for (int kind = 0; kind < kJobKinds; ++kind) {
    for (const Samples& samples : samples_[kind]) typical[kind].push_back(TrimmedMeanOf(samples.seconds));
  }
  return typical;
}

}  // namespace weft
