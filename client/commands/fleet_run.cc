#include "client/commands/fleet_run.h"

#include <poll.h>
#include <string.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/commands/found_trace.h"
#include "client/console/console.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr int kPollMs = 100;
constexpr int kTraceTries = 100;  // ten seconds, for a folder that is being written

// Waits for a moment. Cancelled if a signal came meanwhile.
absl::Status Pause(StopSignals* signals) {
  pollfd wait{signals->descriptor(), POLLIN, 0};
  poll(&wait, 1, kPollMs);
  const int signal = signals->Take();
  if (signal == 0) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("stopped by SIG", sigabbrev_np(signal)));
}

// Waits until the run has ended; says for what it waits.
absl::StatusOr<RunInfo> AwaitEnd(RunsClient& client, uint64_t run, StopSignals* signals) {
  std::string said;
  for (;;) {
    absl::StatusOr<RunInfo> info = client.Get(run);
    if (!info.ok() || IsFinal(info->state)) return info;
    if (info->state == RunState::kWaiting && info->reason != said) {
      said = info->reason;
      PrintMessage(absl::StrCat("run ", run, " (", info->name, ") waits: ", said));
    }
    const absl::Status paused = Pause(signals);
    if (paused.ok()) continue;
    client.Cancel(run, std::string(paused.message()), /*save=*/false).IgnoreError();
    return paused;
  }
}

// The trace of a run that has just ended is there once its folder is written.
absl::StatusOr<FoundTrace> AwaitTrace(RunsClient& client, uint64_t run, StopSignals* signals) {
  for (int i = 0;; ++i) {
    absl::StatusOr<FoundTrace> found = FetchTrace(client, run);
    if (found.ok() || !absl::IsFailedPrecondition(found.status()) || i == kTraceTries) return found;
    if (const absl::Status paused = Pause(signals); !paused.ok()) return paused;
  }
}

}  // namespace

absl::StatusOr<MeasuredRun> TrainOnFleet(RunsClient& client, const RunSpec& run, int processes,
                                         const std::string& pool, StopSignals* signals) {
  SubmitRequest request;
  request.spec = ToJson(run).dump();
  request.request = RequestName();
  request.processes = processes;
  request.terms.pool = pool;
  const absl::StatusOr<uint64_t> id = SubmitPatiently(client, request, kPatienceNs);
  if (!id.ok()) return id.status();
  const absl::StatusOr<RunInfo> ended = AwaitEnd(client, *id, signals);
  if (!ended.ok()) return ended.status();
  if (ended->state != RunState::kFinished)
    return absl::FailedPreconditionError(
        absl::StrCat("run ", *id, " (", run.name, ") ", RunStateName(ended->state), ": ", ended->reason));
  absl::StatusOr<FoundTrace> found = AwaitTrace(client, *id, signals);
  if (!found.ok()) return found.status();
  MeasuredRun measured{nlohmann::json::parse(found->summary, nullptr, /*allow_exceptions=*/false),
                       *std::move(found->trace)};
  for (const int32_t member : ended->member_of_rank) measured.workers.push_back(ended->members.at(member));
  return measured;
}

absl::StatusOr<std::vector<std::string>> NodesOf(RunsClient& client,
                                                 const std::vector<std::string>& workers) {
  const absl::StatusOr<std::vector<WorkerInfo>> connected = client.ListWorkers();
  if (!connected.ok()) return connected.status();
  std::map<std::string, std::string> node_of;
  for (const WorkerInfo& w : *connected) node_of[WorkerLabel(w)] = w.node;
  std::vector<std::string> nodes;
  nodes.reserve(workers.size());
  for (const std::string& w : workers) nodes.push_back(node_of[w]);
  return nodes;
}

}  // namespace weft
