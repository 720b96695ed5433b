#include "coordinator/record/run_records.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/monotonic_clock.h"
#include "base/require.h"
#include "base/run_files.h"
#include "base/threads.h"
#include "coordinator/record/hash_log.h"
#include "coordinator/record/kept_checkpoint.h"
#include "coordinator/record/log_file.h"
#include "coordinator/record/output_folder.h"
#include "coordinator/record/replan_log.h"
#include "coordinator/record/run_end.h"
#include "coordinator/record/run_recorder.h"
#include "coordinator/record/step_log.h"
#include "run/run_id.h"
#include "run/run_spec.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int kNamesTried = 1000;
constexpr int64_t kLastWriteNs = 5'000'000'000;

// Returns the word of run.json for the state of a run that has ended.
const char* WordOf(RunState state) {
  if (state == RunState::kFinished) return "finished";
  return state == RunState::kCancelled ? "stopped" : "failed";
}

// Returns the one path of a folder that several may lead to, through links or with a slash at the end. The
// folder need not be there. Returns `path` where the kernel does not say.
std::string PlaceOf(const std::string& path) {
  std::error_code unknown;
  const std::string place = fs::weakly_canonical(path, unknown).string();
  return unknown ? path : std::string(absl::StripSuffix(place, "/"));
}

}  // namespace

// Keeps the pictures of the last runs that have ended, so that a page that shows a run when it ends still has
// them; and of those whose results could not be written, why not. Any thread.
class RunRecords::EndedRuns {
 public:
  void Add(Look look) {
    look.jobs = LastSteps(look.jobs, kMostJobs);
    if (look.jobs.size() > kMostJobs) look.jobs.clear();
    MutexLock lock(mu_);
    looks_.push_back(std::move(look));
    if (looks_.size() > kMostRuns) looks_.pop_front();
  }

  void AddFailure(uint64_t run, absl::string_view failure) {
    MutexLock lock(mu_);
    failures_.emplace_back(run, failure);
    if (failures_.size() > kMostFailures) failures_.pop_front();
  }

  // Returns "" for none.
  std::string FailureOf(uint64_t run) const {
    MutexLock lock(mu_);
    for (const auto& [of, failure] : failures_) {
      if (of == run) return failure;
    }
    return "";
  }

  std::optional<Look> Find(uint64_t run) const {
    MutexLock lock(mu_);
    const auto found =
        std::find_if(looks_.begin(), looks_.end(), [run](const Look& look) { return look.run.id == run; });
    return found == looks_.end() ? std::nullopt : std::optional(*found);
  }

 private:
  static constexpr size_t kMostRuns = 16, kMostJobs = 20'000;  // about a MiB each
  static constexpr size_t kMostFailures = 1000;

  mutable Mutex mu_;
  std::deque<Look> looks_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<uint64_t, std::string>> failures_ ABSL_GUARDED_BY(mu_);  // by run
};

// Records one run: the loop fills the recorder, the thread empties it into the folder.
class RunRecords::Recording {
 public:
  Recording(uint64_t id, const RunPlan& plan, std::string file, std::unique_ptr<OutputFolder> folder,
            std::function<void(uint64_t run, const std::string&)> log,
            std::function<void(uint64_t run)> written, std::shared_ptr<EndedRuns> ended,
            bool same_run = false)
      : id_(id),
        path_(folder->path()),
        place_(PlaceOf(path_)),
        spec_(*plan.spec),
        schedule_(plan.graph.run_schedule()),
        file_(std::move(file)),
        folder_(std::move(folder)),
        log_(std::move(log)),
        tell_written_(std::move(written)),
        ended_(std::move(ended)),
        steps_(folder_->live(), spec_.first_step(), spec_.train.non_finite, EventTermsOf(spec_)),
        hashes_(folder_->live(), spec_, same_run),
        log_file_(folder_->live(), same_run || spec_.first_step() > 0),
        recorder_(
            spec_.stages(), kTracedJobs, [this] { Wake(); }, spec_.record_hashes) {}

  uint64_t id() const { return id_; }
  // Returns true if the run's folder has this path, or was there when the run took it.
  bool IsIn(const std::string& path) const { return path == path_ || PlaceOf(path) == place_; }
  RunRecorder& recorder() { return recorder_; }
  Look LookAt() const { return {recorder_.run(), recorder_.history(), recorder_.LastJobs(), spec_.stages()}; }

  // Begins the thread, once. It keeps the recording alive.
  static void Begin(const std::shared_ptr<Recording>& recording) {
    if (std::exchange(recording->begun_, true)) return;
    StartThread([recording] {
      recording->Write();
      recording->written_.Notify();
    }).detach();
  }

  // Ends the thread without ending the run, which its folder keeps for Restore.
  void Abandon() {
    abandoned_ = true;
    Wake();
  }

  // Notes the checkpoint that was called `checkpoint` before the claim.
  void NoteKept(std::string kept) { kept_ = std::move(kept); }
  // Has the thread leave the folder as it was before the run. Before the run's end.
  void TakeBack() { taken_back_ = true; }

  absl::StatusOr<RunTrace> Trace() const { return TraceSoFar(spec_, schedule_, recorder_); }

  bool AwaitWritten(int64_t ns) { return !begun_ || written_.WaitWithTimeout(ns); }

 private:
  void Wake() {
    MutexLock lock(mu_);
    woken_ = true;
    wake_.Signal();
  }

  void Await() {
    MutexLock lock(mu_);
    while (!woken_) wake_.Wait(mu_);
    woken_ = false;
  }

  void WriteSteps() {
    for (const StepRecord& step : recorder_.TakeSteps()) {
      const absl::Status written = steps_.Append(step);
      if (!written.ok()) Say(absl::StrCat(written.message(), "; the steps are kept for later"));
      if (const std::string notice = steps_.TakeNotice(); !notice.empty()) Say(notice);
    }
    for (const Validation& validation : recorder_.TakeValidations()) {
      const absl::Status written = steps_.Append(validation);
      if (!written.ok()) Say(absl::StrCat(written.message(), "; the figures are kept for later"));
    }
    if (absl::Status written = hashes_.Append(recorder_.TakeHashes()); !written.ok())
      Say(absl::StrCat(written.message(), "; the hashes are kept for later"));
    WriteLog();
    if (absl::Status written = AppendReplans(folder_->live(), recorder_.TakeReplanned()); !written.ok())
      Say(written.message());
    const RunInfo run = recorder_.run();
    if (run.failed_validations == reported_failed_validations_) return;
    reported_failed_validations_ = run.failed_validations;
    Say(run.validation_failure);
  }

  void WriteLog() {
    if (const absl::Status written = log_file_.Append(recorder_.TakeLog()); !written.ok())
      Say(written.message());
  }

  void Write() {
    folder_->KeepReserve();
    while (!recorder_.is_complete() && !abandoned_) {
      Await();
      WriteSteps();
    }
    const RunInfo run = recorder_.run();
    if (!IsFinal(run.state)) return;
    bool complete = false;
    if (taken_back_) {
      std::error_code ignored;
      if (!kept_.empty()) fs::rename(kept_, fs::path(path_) / "checkpoint", ignored);
      folder_->TakeBack(RecordOf(spec_, file_, WordOf(run.state))).IgnoreError();  // of no run that goes on
    } else {
      WriteSteps();
      complete = WriteEnd(run);
      ended_->Add(LookAt());
    }
    folder_.reset();  // and with it the lock
    // A store keeps the steps of a folder that is not complete, for the next start.
    if (complete && tell_written_) tell_written_(id_);
  }

  // Writes what is left to write of a run that has ended. Returns true if its folder is complete then.
  bool WriteEnd(const RunInfo& run) {
    if (run.state == RunState::kFinished) {
      const TrainResults results = ResultsOf(spec_, schedule_, run.processes, recorder_, steps_);
      const EndedRun ended_run =
          LeaveResults(results, RecordOf(results.spec, file_, WordOf(run.state), steps_.seconds().size()),
                       folder_.get(), &steps_);
      for (const std::string& sentence : ended_run.lost) Say(sentence);
      if (!ended_run.status.ok()) {
        Say(ended_run.status.message());
        ended_->AddFailure(id_, ended_run.status.message());
      }
      return ended_run.complete;
    }
    const TrainResults so_far = ResultsSoFar(spec_, schedule_, recorder_);
    const RunRecord record =
        RecordOf(so_far.spec, file_, WordOf(run.state), steps_.seconds().size(), run.reason);
    const UnfinishedRun left = LeaveUnfinished(so_far, record, folder_.get(), &steps_);
    if (!left.message.empty()) Say(left.message);
    return left.complete;
  }

  void Say(absl::string_view sentence) const {
    if (!taken_back_) log_(id_, std::string(sentence));
  }

  const uint64_t id_;
  const std::string path_, place_;  // of the output folder: its name, and where that led at the beginning
  const RunSpec spec_;
  const RunSchedule schedule_;
  const std::string file_;
  std::unique_ptr<OutputFolder> folder_;
  const std::function<void(uint64_t run, const std::string&)> log_;
  const std::function<void(uint64_t run)> tell_written_;
  const std::shared_ptr<EndedRuns> ended_;
  StepLog steps_;
  HashLog hashes_;
  LogFile log_file_;
  int reported_failed_validations_ = 0;  // of validations
  bool begun_ = false;                   // the loop's thread
  std::string kept_;                     // checkpoint with another name since the claim; "" for none
  std::atomic<bool> taken_back_{false};
  std::atomic<bool> abandoned_{false};
  Notification written_;
  Mutex mu_;
  CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  RunRecorder recorder_;
};

RunRecords::RunRecords(std::string root, std::function<void(uint64_t run, const std::string&)> log,
                       std::function<void(uint64_t run)> written, bool takes_over)
    : root_(std::move(root)),
      log_(std::move(log)),
      written_(std::move(written)),
      takes_over_(takes_over),
      ended_(std::make_shared<EndedRuns>()) {}

RunRecords::~RunRecords() {
  std::vector<std::shared_ptr<Recording>> all;
  {
    MutexLock lock(mu_);
    all.swap(ending_);
    for (auto& [run, recording] : recordings_) {
      recording->Abandon();
      all.push_back(std::move(recording));
    }
    recordings_.clear();
  }
  const int64_t until = MonotonicNow() + kLastWriteNs;
  for (const auto& recording : all) {
    recording->AwaitWritten(std::max<int64_t>(until - MonotonicNow(), 0));
  }
}

// A folder that was removed has no lock any more, but the run that writes there goes on.
absl::Status RunRecords::CheckNoRunIn(const std::string& path) {
  MutexLock lock(mu_);
  for (const auto& [run, recording] : recordings_) {
    if (!recording->IsIn(path)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("run ", run, " is writing in ", path,
                     "; wait for its end or stop it, or give another folder with --out"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RunFolder> RunRecords::Claim(uint64_t run, const SubmitRequest& request, const RunPlan& plan) {
  Require(plan.spec != nullptr, "a run that is recorded has its specification");
  const RunSpec& spec = *plan.spec;
  absl::StatusOr<std::unique_ptr<OutputFolder>> folder = absl::UnavailableError("");
  if (!request.output.empty()) {
    const std::string path = fs::absolute(request.output).lexically_normal().string();
    if (absl::Status allowed = CheckRunPath(path); !allowed.ok())
      return absl::Status(allowed.code(), absl::StrCat("output: ", allowed.message()));
    if (absl::Status free = CheckNoRunIn(path); !free.ok()) return free;
    folder = OutputFolder::Open(path, path, FormerWorkFor(spec.resume.checkpoint, path, request.overwrite));
  } else {
    // A coordinator that was started again counts from 1 again.
    for (int i = 1; i <= kNamesTried; ++i) {
      const std::string path =
          absl::StrCat(root_, "/", spec.name, "-", run, i == 1 ? "" : absl::StrCat("-", i));
      if (!CheckNoRunIn(path).ok()) continue;
      folder = OutputFolder::Open(path, path, FormerWork::kRefuse);
      if (folder.ok() || (DescribeWork(path).empty() && !absl::IsResourceExhausted(folder.status()))) break;
    }
  }
  if (!folder.ok()) return folder.status();
  if (const std::string killed = (*folder)->KilledReplacement(); !killed.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.resume.checkpoint, " is of a run that was to replace the one in ", (*folder)->path(),
        " and was killed; move ", killed, " to another place, and go on from there"));
  }
  const PlannedSpec kept = WithKeptCheckpoint(request.output, {std::make_shared<RunPlan>(plan), ""});
  ResumeSpec resume = spec.resume;
  if (kept.plan->spec->resume.checkpoint != resume.checkpoint) {
    if (absl::Status renamed = KeepCheckpoint((*folder)->path(), &resume); !renamed.ok()) return renamed;
  }
  RunRecord record = RecordOf(*kept.plan->spec, request.file, "running");
  record.run_id = NewRunId();
  if (absl::Status begun = (*folder)->Begin(record); !begun.ok()) return begun;
  RunFolder claimed{(*folder)->path(), (*folder)->live(), record.run_id};
  auto recording =
      std::make_shared<Recording>(run, *kept.plan, request.file, *std::move(folder), log_, written_, ended_);
  if (resume.checkpoint != spec.resume.checkpoint) recording->NoteKept(resume.checkpoint);
  MutexLock lock(mu_);
  recordings_[run] = std::move(recording);
  return claimed;
}

// A disk that is not mounted yet looks like folders that were removed. Runs that were submitted with a folder
// of their own tell nothing about the root.
absl::Status RunRecords::CheckRootHolds(const std::string& path) const {
  std::error_code error;
  if (!absl::StartsWith(path, root_ + "/") || fs::exists(path, error)) return absl::OkStatus();
  const bool there = fs::exists(root_, error);
  if (error || (there && !fs::is_empty(root_, error))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the folder ", root_, " of --output-root is ", there ? "empty" : "missing", ", and ", path,
      " was in it: mount it; or if the outputs were removed for good, make an empty folder ", path));
}

absl::Status RunRecords::Restore(const StoredRun& run, const RunPlan& plan) {
  Require(plan.spec != nullptr, "a run that is recorded has its specification");
  const Submission& submission = run.submission;
  if (absl::Status holds = CheckRootHolds(submission.folder.path); !holds.ok()) return holds;
  RunRecord record = RecordOf(*plan.spec, submission.file, "running", run.steps.size());
  record.run_id = submission.folder.run_id;
  auto folder = OutputFolder::Reopen(submission.folder.path, submission.folder.live, record, takes_over_);
  if (!folder.ok()) return folder.status();
  auto recording = std::make_shared<Recording>(submission.run, plan, submission.file, *std::move(folder),
                                               log_, written_, ended_,
                                               /*same_run=*/true);
  recording->recorder().TakeUp(run.figures.first_start_ns, run.steps, run.validations);
  MutexLock lock(mu_);
  recordings_[submission.run] = std::move(recording);
  return absl::OkStatus();
}

absl::Status RunRecords::EndUnplanned(const StoredRun& run, RunState state, const std::string& reason) {
  const RunFolder& at = run.submission.folder;
  if (absl::Status holds = CheckRootHolds(at.path); !holds.ok()) return holds;
  RunRecord record = ReadRecord(PlaceOfResults(at.path, at.live));
  record.run_id = at.run_id;
  auto folder = OutputFolder::Reopen(at.path, at.live, record, takes_over_);
  if (!folder.ok()) return folder.status();
  record.state = WordOf(state);
  record.reason = reason;
  const int steps_made = record.first_step + static_cast<int>(run.steps.size());
  record.steps_done = std::max(record.steps_done, steps_made);
  return (*folder)->End(record).status();
}

std::shared_ptr<RunRecords::Recording> RunRecords::Find(uint64_t run) {
  MutexLock lock(mu_);
  const auto found = recordings_.find(run);
  return found == recordings_.end() ? nullptr : found->second;
}

std::optional<RunRecords::Look> RunRecords::LookAt(uint64_t run) {
  const std::shared_ptr<Recording> recording = Find(run);
  return recording == nullptr ? ended_->Find(run) : recording->LookAt();
}

std::optional<std::string> RunRecords::EndOf(uint64_t run) {
  MutexLock lock(mu_);
  const auto writes = [run](const auto& recording) {
    return recording->id() == run && !recording->AwaitWritten(0);
  };
  if (recordings_.count(run) > 0 || std::any_of(ending_.begin(), ending_.end(), writes)) return std::nullopt;
  return ended_->FailureOf(run);
}

absl::StatusOr<RunTrace> RunRecords::TraceOf(uint64_t run, const std::string& output) {
  const std::shared_ptr<Recording> recording = Find(run);
  absl::StatusOr<RunTrace> trace = recording != nullptr ? recording->Trace() : ReadRunTrace(output);
  if (trace.ok()) return trace;
  return absl::FailedPreconditionError(
      absl::StrCat("run ", run, " has no trace: ", trace.status().message()));
}

void RunRecords::Forget(uint64_t run) {
  MutexLock lock(mu_);
  const auto found = recordings_.find(run);
  if (found == recordings_.end()) return;
  ending_.erase(
      std::remove_if(ending_.begin(), ending_.end(), [](const auto& r) { return r->AwaitWritten(0); }),
      ending_.end());
  ending_.push_back(std::move(found->second));
  recordings_.erase(found);
}

void RunRecords::Release(uint64_t run) {
  const std::shared_ptr<Recording> recording = Find(run);
  if (recording == nullptr) return;
  RunInfo refused;
  refused.id = run;
  refused.state = RunState::kFailed;
  refused.reason = "it was not taken in";
  recording->TakeBack();
  OnRun(refused);
  OnSpansComplete(run);
}

void RunRecords::OnRun(const RunInfo& run) {
  const std::shared_ptr<Recording> recording = Find(run.id);
  if (recording == nullptr) return;
  recording->recorder().OnRun(run);
  // A run that only waits needs no thread.
  if (run.state >= RunState::kPreparing) Recording::Begin(recording);
  if (run.state == RunState::kFinished) Forget(run.id);
}

void RunRecords::OnStep(const StepDone& step) {
  if (const auto recording = Find(step.run)) recording->recorder().OnStep(step);
}

void RunRecords::OnValidation(const Validation& validation) {
  if (const auto recording = Find(validation.run)) recording->recorder().OnValidation(validation);
}

void RunRecords::OnJobs(const JobsEnded& jobs) {
  if (const auto recording = Find(jobs.run)) recording->recorder().OnJobs(jobs);
}

void RunRecords::OnLog(const RunLogLine& line) {
  if (const auto recording = Find(line.run)) recording->recorder().OnLog(line);
}

void RunRecords::OnReport(const Report& report) {
  if (const auto recording = Find(report.run)) recording->recorder().OnReport(report);
}

void RunRecords::OnSpans(const Spans& spans) {
  if (const auto recording = Find(spans.run)) recording->recorder().OnSpans(spans);
}

void RunRecords::OnSpansComplete(uint64_t run) {
  const std::shared_ptr<Recording> recording = Find(run);
  if (recording == nullptr) return;
  recording->recorder().OnSpansComplete();
  Forget(run);
}

void RunRecords::OnReplanned(const Replanned& replanned) {
  if (const auto recording = Find(replanned.run)) recording->recorder().OnReplanned(replanned);
}

}  // namespace weft
