#include "coordinator/core/present_work.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/wait_chains.h"

namespace weft {
namespace {

// Returns the job that the rank computes, as its process last said, else the first that can start. Nothing
// for a rank that has no such job.
std::optional<WorkerInfo::JobInHand> JobInHandOf(const RunAttempt& attempt, int64_t now, Rank rank) {
  const RankWatch::Seen& seen = attempt.seen().Of(rank);
  if (seen.running.has_value() && attempt.queue().IsInHand(rank, seen.running->job))
    return WorkerInfo::JobInHand{rank, seen.running->job, seen.running->age_ns + now - seen.reported_ns};
  const std::vector<Job> first = attempt.queue().InHand(rank, 1);
  if (first.empty() || !attempt.queue().IsReady(first.front())) return std::nullopt;
  return WorkerInfo::JobInHand{rank, first.front()};
}

void AddJobs(const Run& run, int64_t now, SessionId session, WorkerInfo* worker) {
  const RunMember* member = run.members().Find(session);
  const RunAttempt* attempt = run.present().attempt();
  if (member == nullptr || attempt == nullptr || run.state() != RunState::kRunning) return;
  for (const Rank rank : run.members().RanksOf(*member)) {
    if (auto job = JobInHandOf(*attempt, now, rank)) worker->jobs.push_back(*std::move(job));
  }
}

std::vector<MemberSilence> SilencesOf(const CoordinatorCore& core, const Run& run, int64_t now) {
  std::vector<MemberSilence> silences;
  for (const RunMember& member : run.members().all()) {
    MemberSilence& silence = silences.emplace_back();
    const Worker* worker = core.sessions().workers().Find(member.session);
    if (worker == nullptr) continue;
    silence.for_ns = now - worker->heard_ns;
    silence.silent = core.sessions().IsSilent(*worker, now);
    if (worker->broken) silence.broken = worker->broken_reason;
  }
  return silences;
}

std::string HoldsOf(const RunAttempt& attempt) {
  const RunCheckpoints* checkpoints = attempt.checkpoints();
  if (checkpoints != nullptr && checkpoints->saving()) return checkpoints->DescribeSaving();
  return attempt.stop_reason();
}

std::string ReasonOf(const Run& run) {
  if (!run.info().reason.empty() || run.returning()) return run.info().reason;
  const auto missing = [&](bool RunMember::*flag, absl::string_view what) {
    const std::string members = run.members().Missing(flag);
    return members.empty() ? "" : absl::StrCat("waits for ", members, what);
  };
  if (run.state() == RunState::kPreparing) return missing(&RunMember::prepared, " to prepare it");
  if (run.state() == RunState::kFinishing) return missing(&RunMember::finished, " to save and report");
  return "";
}

}  // namespace

std::vector<WorkerInfo> ListWorkersWithJobs(const CoordinatorCore& core, int64_t now) {
  std::vector<WorkerInfo> workers = core.ListWorkers(now);
  std::map<int32_t, SessionId> session_of;
  for (const auto& [session, worker] : core.sessions().workers().all()) session_of[worker.process] = session;
  for (WorkerInfo& info : workers) {
    if (const Run* run = core.runs().Find(info.run)) AddJobs(*run, now, session_of[info.process], &info);
  }
  return workers;
}

absl::StatusOr<RunWaits> WaitsOf(const CoordinatorCore& core, int64_t now, uint64_t id) {
  const absl::StatusOr<RunInfo> info = core.GetRun(id);
  if (!info.ok()) return info.status();
  const Run& run = *core.runs().Find(id);
  RunWaits waits{id, info->name, info->state, ReasonOf(run)};
  const RunAttempt* attempt = run.present().attempt();
  if (info->state != RunState::kRunning || attempt == nullptr) return waits;
  AddWaits({now, attempt->running_since_ns(), attempt->plan().graph, attempt->queue(), run.members(),
            attempt->seen(), attempt->times(), SilencesOf(core, run, now), HoldsOf(*attempt)},
           &waits);
  return waits;
}

}  // namespace weft
