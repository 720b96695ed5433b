#include "client/training/local_training.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_server.h"
#include "base/monotonic_clock.h"
#include "client/console/progress.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "client/training/training_end.h"
#include "client/training/worker_processes.h"
#include "coordinator/record/hash_log.h"
#include "coordinator/record/log_file.h"
#include "coordinator/record/replan_log.h"
#include "coordinator/record/run_end.h"
#include "coordinator/record/run_recorder.h"
#include "coordinator/record/step_log.h"
#include "coordinator/record/train_results.h"
#include "coordinator/shell/coordinator_server.h"
#include "coordinator/shell/spec_planner.h"
#include "nlohmann/json.hpp"
#include "proto/session/loss_count.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"

namespace weft {
namespace {

// Seconds for workers to stop, of the two in which Ctrl-C has to end everything.
constexpr double kStopGrace = 1.2;
constexpr double kEndGrace = 5;  // seconds for workers to leave after a run

class LocalTraining {
 public:
  explicit LocalTraining(const LocalTrainingOptions& options)
      : options_(options),
        spec_text_(ToJson(options.run.spec).dump()),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        recorder_(
            options.run.spec.stages(), kTracedJobs, [this] { eventfd_write(wake_, 1); },
            options.run.spec.record_hashes),
        log_(options.output->live(), options.run.spec.first_step(), options.run.spec.train.non_finite,
             EventTermsOf(options.run.spec)),
        hashes_(options.output->live(), options.run.spec),
        log_file_(options.output->live(), options.run.spec.first_step() > 0),
        progress_(ProgressWanted()),
        losses_(options.run.spec.restarts) {}
  ~LocalTraining() {
    server_.reset();  // its thread calls the recorder
    close(wake_);
  }

  ExitCode Run() {
    const absl::Status started = Start();
    if (!started.ok()) {
      if (server_ != nullptr) server_->Stop("the training could not start");
      workers_.Stop(kStopGrace, &signals_);
      TellUnfinished(options_, Results(), "failed", std::string(started.message()), &log_);
      return Fail(started.code() == absl::StatusCode::kInvalidArgument ? kExitBadConfiguration : kExitFailed,
                  started.message());
    }
    const absl::Status ended = Watch();
    progress_.Clear();
    if (ended.code() == absl::StatusCode::kCancelled) return Interrupted(ended);
    if (ended.code() == absl::StatusCode::kInvalidArgument) return Refused(ended);
    if (!ended.ok()) return Failed(ended);
    return Finished();
  }

 private:
  absl::Status Start();
  absl::Status StartServer();
  // Watches until the run ends. Cancelled for a stop signal; InvalidArgument if the worker processes cannot
  // start with their flags, in the words of one of them.
  absl::Status Watch();
  void Wait();
  void LogSteps();
  // Handles a stop signal: returns true if the run goes on to a checkpoint, false if it ends at once.
  bool BeginStop(int signal, const RunInfo& run);
  void TellFailedCheckpoints(const RunInfo& run);
  void TellRestart(const RunInfo& run);
  // Starts another worker process in the place of one that has ended, where the run may begin again.
  void Replace(const WorkerProcesses::Ended& ended, const RunInfo& run);
  // Describes the phase of a run in which no step has ended.
  std::string Phase(RunState state) const;
  void ShowProgress(const RunInfo& run);

  ExitCode Finished();
  void EndLateProcesses();
  ExitCode Failed(const absl::Status& status);
  ExitCode Refused(const absl::Status& status);
  ExitCode Interrupted(const absl::Status& status);
  TrainResults Results() const;
  void PrintCheckpoint();

  const LocalTrainingOptions& options_;
  const std::string spec_text_;  // of the options, for the workers
  StopSignals signals_;          // constructed before anything that starts a thread
  const int wake_;
  RunRecorder recorder_;
  StepLog log_;
  HashLog hashes_;
  LogFile log_file_;
  Progress progress_;
  Metrics metrics_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::function<std::string(int)> worker_metrics_;
  std::unique_ptr<ScratchFolder> scratch_;
  std::unique_ptr<CoordinatorServer> server_;
  WorkerProcesses workers_;
  uint64_t run_ = 0;
  std::string stopped_by_;  // "stopped by SIGINT", once the run goes on to its last checkpoint
  double stop_until_ = 0;
  int reported_restarts_ = 0;
  LossCount losses_;                                                       // losses of worker processes
  int reported_failed_checkpoints_ = 0, reported_failed_validations_ = 0;  // of checkpoints; of validations
};

absl::Status LocalTraining::StartServer() {
  CoordinatorServerOptions server;
  server.listen = {absl::StrCat("unix:", *scratch_ / "coordinator.sock")};
  server.core.fixed_workers = true;
  server.planner = [this](const std::string& spec) -> absl::StatusOr<UnplannedRun> {
    if (spec != spec_text_)
      return absl::PermissionDeniedError("this coordinator has one run, that of weft train");
    return UnplannedRun{false, [this] { return PlanRun(options_.run.spec, *options_.run.schedule); }};
  };
  server.metrics = &metrics_;
  server.observer.run = [this](const RunInfo& run) { recorder_.OnRun(run); };
  server.observer.step = [this](const StepDone& step) { recorder_.OnStep(step); };
  server.observer.validation = [this](const Validation& done) { recorder_.OnValidation(done); };
  server.observer.jobs = [this](const JobsEnded& jobs) { recorder_.OnJobs(jobs); };
  server.observer.report = [this](const Report& report) { recorder_.OnReport(report); };
  server.observer.spans = [this](const Spans& spans) { recorder_.OnSpans(spans); };
  server.observer.spans_complete = [this](uint64_t) { recorder_.OnSpansComplete(); };
  server.trace = [this](uint64_t, const std::string&) {
    return TraceSoFar(options_.run.spec, *options_.run.schedule, recorder_);
  };
  server.observer.log = [this](const RunLogLine& line) { recorder_.OnLog(line); };
  server.observer.replanned = [this](const Replanned& r) { recorder_.OnReplanned(r); };
  server.observer.slow_job = [this](const SlowJob& slow) { recorder_.OnSlowJob(slow); };
  auto started = CoordinatorServer::Start(std::move(server));
  if (!started.ok()) return started.status();
  server_ = *std::move(started);
  return absl::OkStatus();
}

absl::Status LocalTraining::Start() {
  if (!options_.metrics.empty()) {
    auto server = MetricsServer::Start(options_.metrics, &metrics_);
    if (server.status().code() == absl::StatusCode::kFailedPrecondition) {
      return absl::InvalidArgumentError(
          absl::StrCat("--metrics ", options_.metrics,
                       " could be read by other machines; give a port of this one, as 127.0.0.1:9100"));
    }
    if (!server.ok()) {
      return absl::Status(server.status().code(), absl::StrCat("--metrics: ", server.status().message()));
    }
    metrics_server_ = *std::move(server);
    const std::string host = options_.metrics.substr(0, options_.metrics.rfind(':'));
    const int port = metrics_server_->port();
    PrintMessage(absl::StrCat("metrics at http://", host, ":", port,
                              "/metrics, of the worker processes at ports ", port + 1, " to ",
                              port + options_.processes + options_.spares));
    worker_metrics_ = [host, port](int process) { return absl::StrCat(host, ":", port + 1 + process); };
  }
  auto scratch = ScratchFolder::Make();
  if (!scratch.ok()) return scratch.status();
  scratch_ = *std::move(scratch);
  absl::Status served = StartServer();
  if (!served.ok()) return served;
  SubmitRequest request;
  request.spec = spec_text_;
  request.processes = options_.processes;
  request.output = options_.output->live();
  const auto run = server_->Submit(request);
  if (!run.ok()) return run.status();
  run_ = *run;
  // Without this note nobody can ask about the run; it goes on all the same.
  options_.output->TellCoordinator(server_->addresses()[0]).IgnoreError();
  std::vector<std::string> arguments = options_.device.Arguments();
  arguments.insert(arguments.end(), {"--flight-recorder", options_.output->path()});
  return workers_.Start(options_.processes + options_.spares, server_->addresses()[0], arguments,
                        worker_metrics_);
}

void LocalTraining::Wait() {
  std::vector<pollfd> descriptors = {{signals_.descriptor(), POLLIN, 0}, {wake_, POLLIN, 0}};
  workers_.AddTo(&descriptors);
  // The time-out renews the progress, and finds processes that ended with their outputs held open by others.
  poll(descriptors.data(), descriptors.size(), 250);
  eventfd_t ignored;
  eventfd_read(wake_, &ignored);
}

void LocalTraining::LogSteps() {
  for (const StepRecord& step : recorder_.TakeSteps()) {
    const absl::Status logged = log_.Append(step);
    if (logged.ok()) continue;
    progress_.Clear();
    PrintMessage(absl::StrCat(logged.message(), "; the training goes on, and the steps are kept for later"));
  }
  for (const Validation& validation : recorder_.TakeValidations()) {
    const absl::Status logged = log_.Append(validation);
    if (logged.ok()) continue;
    progress_.Clear();
    PrintMessage(
        absl::StrCat(logged.message(), "; the training goes on, and the figures are kept for later"));
  }
  if (const absl::Status logged = hashes_.Append(recorder_.TakeHashes()); !logged.ok()) {
    progress_.Clear();
    PrintMessage(absl::StrCat(logged.message(), "; the training goes on, and the hashes are kept for later"));
  }
  if (const absl::Status logged = log_file_.Append(recorder_.TakeLog()); !logged.ok()) {
    progress_.Clear();
    PrintMessage(absl::StrCat(logged.message(), "; the training goes on"));
  }
  if (const absl::Status logged = AppendReplans(options_.output->live(), recorder_.TakeReplanned());
      !logged.ok()) {
    progress_.Clear();
    PrintMessage(logged.message());
  }
  if (const std::string notice = log_.TakeNotice(); !notice.empty()) {
    progress_.Clear();
    PrintMessage(notice);
  }
}

std::string LocalTraining::Phase(RunState state) const {
  switch (state) {
    case RunState::kPreparing:
      return "the worker processes build their stages";
    case RunState::kRunning:
      return log_.seconds().empty() ? "waits for the first step" : "";
    case RunState::kFinishing:
      if (options_.run.spec.validate.any() && recorder_.run().checkpoint_step == options_.run.spec.end_step())
        return "computing the loss on the held-out data";
      return options_.run.spec.checkpoint.none ? "ending" : "writing the checkpoint";
    case RunState::kFinished:
      return "";
    default:
      if (recorder_.run().restarts > 0) return "waits for the worker processes to begin again";
      return absl::StrCat("starting ", options_.processes, " worker processes");
  }
}

void LocalTraining::ShowProgress(const RunInfo& run) {
  ProgressState state;
  state.name = options_.run.spec.name;
  state.phase = Phase(run.state);
  if (run.state == RunState::kRunning) state.trouble = run.reason;
  state.steps = options_.run.spec.end_step();
  state.first_step = options_.run.spec.first_step();
  state.steps_done = state.first_step + static_cast<int>(log_.seconds().size());
  state.loss = log_.last_loss();
  state.has_loss = state.steps_done > state.first_step;
  state.reports = run.reports;
  state.validation = log_.validation();
  progress_.Show(MonotonicSeconds(), state);
}

// The run ends with a checkpoint of the next step that can be saved without a pause; a run that has made no
// step has nothing to save.
bool LocalTraining::BeginStop(int signal, const RunInfo& run) {
  if (log_.seconds().empty() || run.state < RunState::kRunning || IsFinal(run.state)) return false;
  const std::string reason = absl::StrCat("stopped by SIG", sigabbrev_np(signal));
  if (!server_->Cancel(run_, reason, /*save=*/true).ok()) return false;
  const RunInfo now = recorder_.run();
  stopped_by_ = reason;
  const int end = options_.run.spec.end_step();
  const int step = now.stop_step < 0 ? end : now.stop_step;
  stop_until_ = MonotonicSeconds() + StopSeconds(log_, step - now.steps_done);
  if (IsFinal(now.state)) return true;  // it saves no checkpoint
  progress_.Clear();
  PrintMessage(StoppingText(step, end));
  return true;
}

void LocalTraining::TellFailedCheckpoints(const RunInfo& run) {
  if (run.failed_validations > reported_failed_validations_) {
    reported_failed_validations_ = run.failed_validations;
    progress_.Clear();
    PrintMessage(run.validation_failure);
  }
  if (run.failed_checkpoints == reported_failed_checkpoints_ || IsFinal(run.state)) return;
  reported_failed_checkpoints_ = run.failed_checkpoints;
  progress_.Clear();
  PrintMessage(absl::StrCat(run.checkpoint_failure, "; the training goes on"));
}

void LocalTraining::TellRestart(const RunInfo& run) {
  if (run.restarts == reported_restarts_) return;
  reported_restarts_ = run.restarts;
  progress_.Clear();
  PrintMessage(run.restart_reason);
}

// A process that ends before it has computed, again and again, is replaced as often as the run begins again.
void LocalTraining::Replace(const WorkerProcesses::Ended& ended, const RunInfo& run) {
  const bool began = run.state > RunState::kWaiting || run.restarts > 0;
  if (!began || IsFinal(recorder_.run().state) || !stopped_by_.empty()) return;
  if (ended.code == kExitBadConfiguration || ended.code == kExitUsage) return;
  if (!losses_.Bear(static_cast<int32_t>(log_.seconds().size()))) return;
  const absl::Status started = workers_.StartOne(ended.number);
  if (started.ok()) return;
  progress_.Clear();
  PrintMessage(absl::StrCat("no other worker process could start: ", started.message()));
}

absl::Status LocalTraining::Watch() {
  double all_gone = 0;  // time since when no worker runs
  while (true) {
    const RunInfo run = recorder_.run();
    LogSteps();
    TellFailedCheckpoints(run);
    TellRestart(run);
    for (const std::string& slow : recorder_.TakeSlowJobs()) {
      progress_.Clear();
      PrintMessage(slow);
    }
    ShowProgress(run);
    if (run.state == RunState::kFinished) return absl::OkStatus();
    if (IsFinal(run.state) && recorder_.is_complete()) {
      const bool stopped = run.state == RunState::kCancelled && !stopped_by_.empty();
      return stopped ? absl::CancelledError(run.reason) : absl::InternalError(run.reason);
    }
    Wait();
    const int signal = signals_.Take();
    if (signal != 0 && (!stopped_by_.empty() || !BeginStop(signal, run)))
      return absl::CancelledError(absl::StrCat("stopped by SIG", sigabbrev_np(signal)));
    if (!stopped_by_.empty() && !IsFinal(run.state) && MonotonicSeconds() > stop_until_)
      return absl::CancelledError(absl::StrCat(stopped_by_, "; its checkpoint was not complete in time"));
    for (const auto& ended : workers_.Poll()) {
      if (ended.code == kExitBadConfiguration && run.state <= RunState::kWaiting) {
        return absl::InvalidArgumentError(absl::StripPrefix(ended.last_line, kWorkerSays));
      }
      server_->WorkerExited({ended.pid, ended.how, ended.wrote});
      Replace(ended, run);
    }
    for (const auto& said : {workers_.TakeDevices(), workers_.TakeLinesAboutGraphs()}) {
      for (const std::string& line : said) {
        progress_.Clear();
        PrintMessage(line);
      }
    }
    // The coordinator fails the run then, with a better reason than this process could give.
    if (workers_.any_running()) {
      all_gone = 0;
    } else if (all_gone == 0) {
      all_gone = MonotonicSeconds();
    } else if (MonotonicSeconds() - all_gone > 15) {
      return absl::InternalError("all worker processes have ended");
    }
  }
}

TrainResults LocalTraining::Results() const {
  TrainResults results =
      ResultsOf(options_.run.spec, *options_.run.schedule, options_.processes, recorder_, log_);
  // A GPU's ranks wait for the GPU, whatever the cores.
  if (options_.device.device == "cpu") results.cores = CoresOfProcess();
  return results;
}

// Ends the processes that have not joined yet, as one that was started in the place of a lost one: they would
// wait for a coordinator that is gone.
void LocalTraining::EndLateProcesses() {
  const auto now = server_->LookAround(std::nullopt);
  if (!now.ok()) return;
  std::set<pid_t> joined;
  for (const WorkerInfo& worker : now->workers) joined.insert(static_cast<pid_t>(worker.pid));
  workers_.EndOthers(joined);
}

ExitCode LocalTraining::Finished() {
  EndLateProcesses();
  server_->Stop("the run is over");
  workers_.WaitForEnd(kEndGrace);
  workers_.Stop(kStopGrace, &signals_);
  if (const std::string warning = log_.losses().Warning(); !warning.empty()) PrintMessage(warning);
  return TellResults(options_, Results(), &log_);
}

ExitCode LocalTraining::Failed(const absl::Status& status) {
  server_->Stop("the run failed");
  workers_.Stop(kStopGrace, &signals_);
  const std::string words = workers_.LastWords();
  std::fwrite(words.data(), 1, words.size(), stderr);
  TellUnfinished(options_, Results(), "failed", std::string(status.message()), &log_);
  PrintMessage(absl::StrCat("the run failed after ", StepsMade(options_.run.spec, log_.seconds().size()),
                            ": ", status.message()));
  PrintCheckpoint();
  return kExitFailed;
}

// Prints the checkpoint last, for a person who wants to go on.
void LocalTraining::PrintCheckpoint() {
  int step = recorder_.run().checkpoint_step;
  // The folder may have one that was sealed as the run ended, after the last report.
  const absl::StatusOr<std::string> newest =
      FindCheckpoint(options_.output->live(), options_.run.spec.first_step() + 1);
  int sealed = 0;
  if (newest.ok() && absl::SimpleAtoi(newest->substr(newest->rfind('-') + 1), &sealed))
    step = std::max(step, sealed);
  const std::string sentence = GoesOn(options_, step);
  if (!sentence.empty()) PrintMessage(sentence);
}

ExitCode LocalTraining::Refused(const absl::Status& status) {
  server_->Stop("the worker processes could not start");
  workers_.Stop(kStopGrace, &signals_);
  TellUnfinished(options_, Results(), "failed", std::string(status.message()), &log_);
  return Fail(kExitBadConfiguration, status.message());
}

ExitCode LocalTraining::Interrupted(const absl::Status& status) {
  PrintMessage(absl::StrCat(status.message(), " after ", StepsMade(options_.run.spec, log_.seconds().size()),
                            "; ending the worker processes"));
  workers_.Stop(kStopGrace, &signals_);
  server_->Stop("interrupted");
  TellUnfinished(options_, Results(), "stopped", std::string(status.message()), &log_);
  PrintCheckpoint();
  return kExitInterrupted;
}

}  // namespace

ExitCode TrainLocally(const LocalTrainingOptions& options) { return LocalTraining(options).Run(); }

}  // namespace weft
