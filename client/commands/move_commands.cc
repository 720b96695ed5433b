#include "client/commands/move_commands.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/monotonic_clock.h"
#include "coordinator/record/run_view.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(200);

// Follows a run until its ranks have moved, or it is known that they will not.
class MoveWatch {
 public:
  // `ordered`: the run as it was then.
  MoveWatch(std::vector<Rank> ranks, std::string member, const RunInfo& ordered)
      : ranks_(std::move(ranks)), member_(std::move(member)), ordered_(ordered), run_(ordered) {}

  // Takes the run as it is. Returns false once it is decided.
  bool Hear(const RunInfo& run) {
    run_ = run;
    const bool computes = run.state == RunState::kRunning || run.state == RunState::kFinishing;
    moved_ = HasMoved();
    if ((moved_ && computes) || IsFinal(run.state)) return false;
    return !(computes && run.restarts > ordered_.restarts);
  }

  bool moved() const { return moved_; }
  const RunInfo& run() const { return run_; }
  std::string Ranks() const {
    return absl::StrCat(ranks_.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks_, ", "), " of run ",
                        run_.id);
  }
  // Says why the ranks did not move.
  std::string Failure() const {
    if (IsFinal(run_.state))
      return absl::StrCat("run ", run_.id, " has ended (", RunStateName(run_.state), ") before ", Ranks(),
                          ranks_.size() == 1 ? " was on " : " were on ", member_);
    return absl::StrCat(Ranks(), ranks_.size() == 1 ? " is not on " : " are not on ", member_, ": ",
                        run_.restart_reason);
  }

 private:
  bool HasMoved() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](Rank rank) {
      return static_cast<size_t>(rank) < run_.member_of_rank.size() &&
             run_.members[run_.member_of_rank[rank]] == member_;
    });
  }

  const std::vector<Rank> ranks_;
  const std::string member_;
  const RunInfo ordered_;
  RunInfo run_;
  bool moved_ = false;
};

}  // namespace

ExitCode RunMove(const MoveOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const std::string reason = options.reason.empty() ? "asked for by weft move" : options.reason;
  const auto ordered = (*client)->Move({options.run, options.ranks, options.to, reason});
  if (!ordered.ok()) return Fail(ordered.status());
  if (options.detach) return PrintRun(options.coordinator, ordered->first);
  MoveWatch watch(options.ranks, WorkerLabel(ordered->second), ordered->first);
  if (watch.Hear(ordered->first)) {
    const auto hear = [&](const RunEvent& event) {
      const auto* run = std::get_if<RunInfo>(&event);
      return run == nullptr || watch.Hear(*run);
    };
    const absl::Status status = FollowRun(
        **client, options.run, /*known=*/true, kPatienceNs, hear, [] {}, WatchUntil(options.timeout));
    if (status.code() == absl::StatusCode::kDeadlineExceeded)
      return weft::Fail(kExitTimeout, absl::StrCat(watch.Ranks(), " have not moved after ", options.timeout,
                                                   " s; the order stands"));
    if (!status.ok() && status.code() != absl::StatusCode::kCancelled) return Fail(status);
  }
  if (!watch.moved()) return weft::Fail(kExitFailed, watch.Failure());
  return PrintRun(options.coordinator, watch.run());
}

ExitCode RunDrain(const DrainOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const std::string reason = options.reason.empty() ? "asked for by weft drain" : options.reason;
  const auto worker = (*client)->Drain(options.worker, reason);
  if (!worker.ok()) return Fail(worker.status());
  const int64_t began = MonotonicNow();
  while (!options.detach) {
    const auto workers = (*client)->ListWorkers();
    if (!workers.ok()) return Fail(workers.status());
    const bool is_there = std::any_of(workers->begin(), workers->end(), [&](const WorkerInfo& w) {
      return w.process == worker->process && w.pid == worker->pid && w.name == worker->name;
    });
    if (!is_there) break;
    if (options.timeout > 0 && MonotonicNow() - began > static_cast<int64_t>(1e9 * options.timeout))
      return weft::Fail(kExitTimeout, absl::StrCat(WorkerLabel(*worker), " has not left after ",
                                                   options.timeout, " s; it is about to"));
    absl::SleepFor(kLook);
  }
  return options.coordinator.json
             ? PrintJson(WorkerJson(*worker))
             : PrintData(absl::StrCat(WorkerLabel(*worker), options.detach ? " leaves\n" : " has left\n"));
}

}  // namespace weft
