#include "coordinator/core/present_work.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/wait_chains.h"

namespace weft {
namespace {

// Returns the job that the rank computes, as its process last said, else the first that can start; nothing
// if the rank has neither.
std::optional<WorkerInfo::JobInHand> JobInHandOf(const RunAttempt& attempt, int64_t now, Rank rank) {
  const RankWatch::Seen& seen = attempt.seen().Of(rank);
  if (seen.running.has_value() && attempt.queue().IsInHand(rank, seen.running->job))
    return WorkerInfo::JobInHand{rank, seen.running->job, seen.running->age_ns + now - seen.reported_ns};
  const std::vector<Job> first = attempt.queue().InHand(rank, 1);
  if (first.empty() || !attempt.queue().IsReady(first.front())) return std::nullopt;
  return WorkerInfo::JobInHand{rank, first.front()};
}

using JobsOfProcess = std::map<int32_t, std::vector<WorkerInfo::JobInHand>>;

// Adds the jobs that the ranks of the run have in hand, by the number of their process.
void AddJobs(const Run& run, int64_t now, JobsOfProcess* jobs) {
  const RunAttempt* attempt = run.present().attempt();
  if (attempt == nullptr || run.state() != RunState::kRunning) return;
  for (Rank rank = 0; rank < run.members().ranks(); ++rank) {
    const RunMember& member = run.members().MemberOf(rank);
    if (!member.alive) continue;
    if (auto job = JobInHandOf(*attempt, now, rank)) (*jobs)[member.process].push_back(*job);
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

// Returns what the queue holds steps back for: copies of the state, the checkpoint and the validation under
// way, or the reason for which the attempt stops. Steps need not be held back.
std::string HoldsOf(const Run& run, const RunAttempt& attempt) {
  const RunCopies& copies = run.present().copies();
  if (!attempt.stops() && copies.under_way() && copies.hold() <= attempt.queue().hold())
    return "copies of the state in other processes";
  const std::string under_way = attempt.DescribeUnderWay();
  return under_way.empty() ? attempt.stop_reason() : under_way;
}

std::string ReasonOf(const Run& run) {
  if (!run.info().reason.empty() || run.returning()) return run.info().reason;
  const auto missing = [&](bool RunMember::*flag, absl::string_view what) {
    const std::string members = run.members().Missing(flag);
    return members.empty() ? "" : absl::StrCat("waits for ", members, what);
  };
  if (run.state() == RunState::kPreparing) return missing(&RunMember::prepared, " to prepare it");
  if (run.state() != RunState::kFinishing) return "";
  const RunAttempt* attempt = run.present().attempt();
  const std::string saves = attempt == nullptr ? "" : attempt->DescribeUnderWay();
  return saves.empty() ? missing(&RunMember::finished, " to report") : absl::StrCat("waits for ", saves);
}

}  // namespace

std::vector<WorkerInfo> ListWorkersWithJobs(const CoordinatorCore& core, int64_t now) {
  std::vector<WorkerInfo> workers = core.ListWorkers(now);
  std::set<uint64_t> runs;
  for (const WorkerInfo& info : workers) runs.insert(info.run);
  JobsOfProcess jobs;
  for (const uint64_t id : runs) {
    if (const Run* run = core.runs().Find(id)) AddJobs(*run, now, &jobs);
  }
  for (WorkerInfo& info : workers) {
    if (const auto of = jobs.find(info.process); of != jobs.end()) info.jobs = std::move(of->second);
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
            attempt->seen(), attempt->times(), SilencesOf(core, run, now), HoldsOf(run, *attempt)},
           &waits);
  return waits;
}

}  // namespace weft
