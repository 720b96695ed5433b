#include "client/commands/runs_commands.h"

#include <signal.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/threads.h"
#include "client/commands/train_command.h"
#include "client/console/progress.h"
#include "client/files/absolute_path.h"
#include "client/files/run_file.h"
#include "client/files/schedule_file.h"
#include "client/runs/runs_client.h"
#include "coordinator/record/output_folder.h"
#include "coordinator/record/run_view.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr double kRecordSeconds = 10;
constexpr absl::Duration kRecordTry = absl::Milliseconds(2);

// Leaves at Ctrl-C while watching a run: the watching ends, the run does not.
void LeaveRunAtInterrupt(int) {
  const char message[] = "\nweft: no longer watching; the run goes on (weft wait, weft cancel)\n";
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0) _exit(kExitInterrupted);
  _exit(kExitInterrupted);
}

// Asks for the reports of a run's ranks, twice a second, as long as it lives: events report steps only.
class RankReports {
 public:
  RankReports(RunsClient& client, uint64_t run, std::function<void(const RunInfo&)> hear) {
    thread_ = StartThread([this, &client, run, hear = std::move(hear)] {
      while (!over_.WaitWithTimeout(kEvery)) {
        const auto now = client.Get(run);
        if (now.ok()) hear(*now);
      }
    });
  }
  ~RankReports() {
    over_.Notify();
    thread_.join();
  }

 private:
  static constexpr int64_t kEvery = 500'000'000;  // ns
  Notification over_;
  std::thread thread_;
};

class Watcher {
 public:
  // `known` says that the coordinator has answered before.
  Watcher(uint64_t run, bool known) : id_(run), known_(known), progress_(ProgressWanted()) {}

  ExitCode Watch(RunsClient& client, const CoordinatorOptions& options, double timeout) {
    absl::Status status;
    {
      std::optional<RankReports> ranks;
      if (ProgressWanted()) ranks.emplace(client, id_, [this](const RunInfo& run) { HearRanks(run); });
      status = FollowRun(
          client, id_, known_, kPatienceNs, [this](const RunEvent& event) { return Hear(event); },
          [this] {
            MutexLock lock(mu_);
            run_.reason = "the coordinator does not answer; trying again";
            Show();
          },
          WatchUntil(timeout));
    }
    MutexLock lock(mu_);
    progress_.Clear();
    if (status.code() == absl::StatusCode::kDeadlineExceeded) {
      return weft::Fail(kExitTimeout, absl::StrCat("run ", id_, " has not ended after ", timeout,
                                                   " s; it is ", RunStateName(run_.state), " and goes on"));
    }
    if (!status.ok()) return Fail(status);
    const absl::StatusOr<RunInfo> run = AwaitResults(client);
    const ExitCode printed = PrintRun(options, run.ok() ? *run : run_);
    if (printed != kExitOk) return printed;
    if (run.ok() && !run->output_failure.empty())
      return weft::Fail(kExitFailed, absl::StrCat("run ", id_, ": ", run->output_failure));
    return run_.state == RunState::kFinished ? kExitOk : kExitFailed;
  }

 private:
  // Returns the run, which has ended, when its results have been written, so that the next command that looks
  // into the folder finds all of it; or soon, if that takes long. A coordinator of an older release does not
  // say so: then the folder's lock does, if it is on this machine.
  absl::StatusOr<RunInfo> AwaitResults(RunsClient& client) const {
    const double until = MonotonicSeconds() + kRecordSeconds;
    absl::StatusOr<RunInfo> run = client.Get(id_);
    while (run.ok() && MonotonicSeconds() < until) {
      const bool writes = OutputInUse(run->output);
      if (!writes && run->output_closed.value_or(true)) break;
      absl::SleepFor(kRecordTry);
      if (!writes) run = client.Get(id_);
    }
    return run;
  }

  bool Hear(const RunEvent& event) {
    MutexLock lock(mu_);
    if (const auto* run = std::get_if<RunInfo>(&event)) run_ = *run;
    if (const auto* step = std::get_if<StepDone>(&event)) {
      run_.steps_done = step->step + 1;
      run_.loss = step->loss;
      run_.has_loss = step->has_loss;
    }
    Show();
    return true;
  }

  void HearRanks(const RunInfo& run) {
    MutexLock lock(mu_);
    run_.reports = run.reports;
    if (!IsFinal(run_.state)) Show();
  }

  void Show() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ProgressState state{absl::StrCat("run ", id_, " (", run_.name, ")"),
                        std::string(RunStateName(run_.state))};
    if (!run_.reason.empty()) absl::StrAppend(&state.phase, ": ", run_.reason);
    if (run_.state == RunState::kRunning) state.trouble = run_.reason;
    if (run_.state == RunState::kWaiting) state.awaited = run_.reason;
    state.steps = run_.steps;
    state.steps_done = run_.steps_done;
    state.loss = run_.loss;
    state.has_loss = run_.has_loss;
    state.reports = run_.reports;
    state.validation = run_.validation;
    progress_.Show(MonotonicSeconds(), state);
  }

  const uint64_t id_;
  const bool known_;
  Mutex mu_;
  Progress progress_ ABSL_GUARDED_BY(mu_);
  RunInfo run_ ABSL_GUARDED_BY(mu_);
};

// Returns a line for each event, without the name of the run; "" without events.
std::string EventsText(const std::vector<RunLogLine>& events) {
  std::string out = events.empty() ? "" : "\nevents\n";
  for (const RunLogLine& e : events) {
    const absl::Time time = absl::FromUnixNanos(e.entry.unix_ns);
    absl::StrAppend(&out, "  ", absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone()), "  ",
                    e.entry.text, "\n");
  }
  return out;
}

nlohmann::ordered_json RunWithEventsJson(const RunInfo& run, const std::vector<RunLogLine>& events) {
  nlohmann::ordered_json json = RunJson(run);
  json["events"] = nlohmann::ordered_json::array();
  for (const RunLogLine& e : events) {
    json["events"].push_back({{"time", static_cast<double>(e.entry.unix_ns) * 1e-9},
                              {"severity", std::string(LogSeverityName(e.entry.severity))},
                              {"text", e.entry.text}});
  }
  return json;
}

}  // namespace

ExitCode RunSubmit(const SubmitOptions& options) {
  const absl::StatusOr<nlohmann::json> plan =
      options.plan.empty() ? nlohmann::json() : ReadPlan(options.plan);
  if (!plan.ok()) return weft::Fail(kExitBadConfiguration, plan.status().message());
  auto run_file = ReadScheduledRun(options.file, RunFileData::kElsewhere, plan->is_null() ? nullptr : &*plan);
  if (!run_file.ok()) return weft::Fail(kExitBadConfiguration, run_file.status().message());
  if (options.record_hashes) run_file->spec.record_hashes = true;
  TrainOptions part;
  part.until = options.until;
  part.resume = options.resume;
  if (const absl::Status steps = ChooseSteps(part, &*run_file); !steps.ok())
    return weft::Fail(absl::IsOutOfRange(steps) ? kExitUsage : kExitBadConfiguration, steps.message());
  if (const absl::Status few = CheckProcesses(options.processes, *run_file); !few.ok())
    return weft::Fail(kExitUsage, few.message());
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  SubmitRequest request;
  request.spec = ToJson(run_file->spec).dump();
  request.request = RequestName();
  request.processes = options.processes;
  request.overwrite = options.overwrite;
  request.file = options.file;
  request.terms.priority = options.priority;
  request.terms.pool = options.pool;
  if (!options.out.empty()) request.output = AbsolutePath(options.out);
  const auto run = SubmitPatiently(**client, request, kPatienceNs);
  if (!run.ok()) return Fail(run.status());
  const auto submitted = (*client)->Get(*run);
  const std::string where = submitted.ok() && !submitted->output.empty()
                                ? absl::StrCat("; its results go to ", submitted->output)
                                : "";
  if (options.detach) {
    if (!where.empty()) PrintMessage(absl::StrCat("submitted as run ", *run, where));
    return PrintData(options.coordinator.json ? absl::StrCat("{\"run\": ", *run, "}\n")
                                              : absl::StrCat(*run, "\n"));
  }
  signal(SIGINT, LeaveRunAtInterrupt);
  PrintMessage(absl::StrCat("submitted as run ", *run, where));
  return Watcher(*run, /*known=*/true).Watch(**client, options.coordinator, 0);
}

ExitCode RunList(const ListOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const auto runs = (*client)->List();
  if (!runs.ok()) return Fail(runs.status());
  if (!options.coordinator.json) return PrintData(RunsTable(*runs, WallNanos(), OutputStyle()));
  auto json = nlohmann::ordered_json::array();
  for (const RunInfo& run : *runs) json.push_back(RunJson(run));
  return PrintJson(json);
}

ExitCode RunWorkers(const WorkersOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const auto workers = (*client)->ListWorkers();
  if (!workers.ok()) return Fail(workers.status());
  if (!options.coordinator.json) return PrintData(WorkersTable(*workers, OutputStyle()));
  auto json = nlohmann::ordered_json::array();
  for (const WorkerInfo& worker : *workers) json.push_back(WorkerJson(worker));
  return PrintJson(json);
}

ExitCode RunDescribe(const DescribeOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const auto run = (*client)->Get(options.run);
  if (!run.ok()) return Fail(run.status());
  const auto events = (*client)->Events(options.run);
  if (!events.ok()) return Fail(events.status());
  if (options.coordinator.json) return PrintJson(RunWithEventsJson(*run, *events));
  return PrintData(absl::StrCat(RunText(*run, WallNanos(), OutputStyle()), EventsText(*events)));
}

ExitCode RunWait(const WaitOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  signal(SIGINT, LeaveRunAtInterrupt);
  return Watcher(options.run, /*known=*/false).Watch(**client, options.coordinator, options.timeout);
}

ExitCode RunCancel(const CancelOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const std::string reason = options.reason.empty() ? "asked for by weft cancel" : options.reason;
  const auto run = (*client)->Cancel(options.run, reason, options.save);
  return run.ok() ? PrintRun(options.coordinator, *run) : Fail(run.status());
}

}  // namespace weft
