#include "client/runs_commands.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/progress.h"
#include "client/run_file.h"
#include "client/run_view.h"
#include "client/runs_client.h"
#include "proto/wire/mutex.h"

namespace weft {
namespace {

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ExitCode Fail(const absl::Status& status) { return weft::Fail(ExitCodeOf(status), status.message()); }

// A wrong address is a mistake in the arguments.
absl::StatusOr<std::unique_ptr<RunsClient>> Connect(const CoordinatorOptions& options) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return RunsClient::Create(options.address);
}

// The run as it is now, in the form that was asked for.
ExitCode Print(const CoordinatorOptions& options, const RunInfo& run) {
  return PrintData(options.json ? RunJson(run).dump(2) + "\n" : RunText(run, WallNanos()));
}

// Ctrl-C while watching a run ends the watching, not the run.
void LeaveOnInterrupt(int) {
  const char message[] = "\nweft: no longer watching; the run goes on (weft wait, weft cancel)\n";
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0) _exit(kExitInterrupted);
  _exit(kExitInterrupted);
}

// Ends a Watch of the client after some time, unless it ended before.
class WatchTimeout {
 public:
  WatchTimeout(RunsClient& client, double seconds) {
    if (seconds <= 0) return;
    thread_ = std::thread([this, &client, seconds] {
      if (!over_.WaitWithTimeout(absl::ToInt64Nanoseconds(absl::Seconds(seconds)))) client.Stop();
    });
  }
  ~WatchTimeout() {
    over_.Notify();
    if (thread_.joinable()) thread_.join();
  }

 private:
  Notification over_;
  std::thread thread_;
};

class Watcher {
 public:
  explicit Watcher(uint64_t run) : id_(run), progress_(ProgressWanted()) {}

  ExitCode Watch(RunsClient& client, const CoordinatorOptions& options, double timeout) {
    absl::Status status;
    {
      const WatchTimeout stop(client, timeout);
      status = client.Watch(id_, [this](const RunEvent& event) { return Hear(event); });
    }
    progress_.Clear();
    if (status.code() == absl::StatusCode::kCancelled) {
      return weft::Fail(kExitTimeout, absl::StrCat("run ", id_, " has not ended after ", timeout,
                                                   " s; it is ", RunStateName(run_.state), " and goes on"));
    }
    if (!status.ok()) return Fail(status);
    const auto run = client.Get(id_);
    const ExitCode printed = Print(options, run.ok() ? *run : run_);
    if (printed != kExitOk) return printed;
    return run_.state == RunState::kFinished ? kExitOk : kExitFailed;
  }

 private:
  bool Hear(const RunEvent& event) {
    if (const auto* run = std::get_if<RunInfo>(&event)) run_ = *run;
    if (const auto* step = std::get_if<StepDone>(&event)) {
      run_.steps_done = step->step + 1;
      run_.loss = step->loss;
      run_.has_loss = step->has_loss;
    }
    ProgressState state{absl::StrCat("run ", id_, " (", run_.name, ")"),
                        std::string(RunStateName(run_.state))};
    if (!run_.reason.empty()) absl::StrAppend(&state.phase, ": ", run_.reason);
    state.steps = run_.steps;
    state.steps_done = run_.steps_done;
    state.loss = run_.loss;
    state.has_loss = run_.has_loss;
    progress_.Show(MonotonicSeconds(), state);
    return true;
  }

  const uint64_t id_;
  Progress progress_;
  RunInfo run_;
};

}  // namespace

ExitCode RunSubmit(const SubmitOptions& options) {
  const auto spec = ReadRunFile(options.file);
  if (!spec.ok()) return weft::Fail(kExitBadConfiguration, spec.status().message());
  auto client = Connect(options.coordinator);
  if (!client.ok()) return weft::Fail(kExitUsage, client.status().message());
  SubmitRequest request;
  request.spec = ToJson(*spec).dump();
  request.processes = options.processes;
  if (!options.out.empty())
    request.output = std::filesystem::absolute(options.out).lexically_normal().string();
  const auto run = (*client)->Submit(request);
  if (!run.ok()) return Fail(run.status());
  if (options.detach) {
    return PrintData(options.coordinator.json ? absl::StrCat("{\"run\": ", *run, "}\n")
                                              : absl::StrCat(*run, "\n"));
  }
  signal(SIGINT, LeaveOnInterrupt);
  PrintMessage(absl::StrCat("submitted as run ", *run));
  return Watcher(*run).Watch(**client, options.coordinator, 0);
}

ExitCode RunList(const ListOptions& options) {
  auto client = Connect(options.coordinator);
  if (!client.ok()) return weft::Fail(kExitUsage, client.status().message());
  const auto runs = (*client)->List();
  if (!runs.ok()) return Fail(runs.status());
  if (!options.coordinator.json) return PrintData(RunsTable(*runs, WallNanos()));
  auto json = nlohmann::ordered_json::array();
  for (const RunInfo& run : *runs) json.push_back(RunJson(run));
  return PrintData(json.dump(2) + "\n");
}

ExitCode RunDescribe(const DescribeOptions& options) {
  auto client = Connect(options.coordinator);
  if (!client.ok()) return weft::Fail(kExitUsage, client.status().message());
  const auto run = (*client)->Get(options.run);
  return run.ok() ? Print(options.coordinator, *run) : Fail(run.status());
}

ExitCode RunWait(const WaitOptions& options) {
  auto client = Connect(options.coordinator);
  if (!client.ok()) return weft::Fail(kExitUsage, client.status().message());
  signal(SIGINT, LeaveOnInterrupt);
  return Watcher(options.run).Watch(**client, options.coordinator, options.timeout);
}

ExitCode RunCancel(const CancelOptions& options) {
  auto client = Connect(options.coordinator);
  if (!client.ok()) return weft::Fail(kExitUsage, client.status().message());
  const auto run =
      (*client)->Cancel(options.run, options.reason.empty() ? "cancelled with weft cancel" : options.reason);
  return run.ok() ? Print(options.coordinator, *run) : Fail(run.status());
}

}  // namespace weft
