#include "coordinator/core/run_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/submission_hash.h"

namespace weft {
namespace {

std::string Mebibytes(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

}  // namespace

absl::Status RunTable::Submit(StepEffects& out, SubmitRun& submission, uint64_t* id) {
  const auto known = run_of_request_.find(submission.request);
  if (!submission.request.empty() && known != run_of_request_.end()) {
    const uint64_t hash = BodyHash(submission.spec, submission.processes, submission.output);
    if (runs_.at(known->second).submission().body_hash() != hash) {
      return absl::AlreadyExistsError(absl::StrCat("request ", submission.request,
                                                   " was submitted before as run ", known->second,
                                                   " with other content; choose another request name"));
    }
    *id = known->second;
    return absl::OkStatus();
  }
  const int32_t processes = submission.processes == 0 ? submission.plan->ranks() : submission.processes;
  if (absl::Status s = CheckLimits(submission, processes); !s.ok()) return s;
  *id = submission.id != 0 ? submission.id : Reserve();
  if (submission.folder.path.empty()) submission.folder = {submission.output, submission.output, ""};
  out.effects.records.submissions.push_back({*id, submission.request, submission.spec, submission.processes,
                                             submission.output, submission.folder, submission.file,
                                             submission.run_id});
  Run& run = runs_.try_emplace(*id, options_, *id, processes, out.now, submission).first->second;
  if (!run.submission().request().empty()) run_of_request_[run.submission().request()] = *id;
  AddLive(run);
  run.Announce(out);
  return absl::OkStatus();
}

void RunTable::AddLive(Run& run) {
  live_.insert(std::upper_bound(live_.begin(), live_.end(), run.id()), run.id());
  const int64_t bytes = run.submission().has_plan() ? run.submission().plan().bytes : 0;
  plan_bytes_of_[run.id()] = bytes;
  plan_bytes_ += bytes;
  File(run);
}

void RunTable::File(Run& run) {
  if (run.state() <= RunState::kWaiting && !run.returning()) {
    active_.erase(run.id());
    active_dues_.Remove(run.id());
    running_.erase(run.id());
    return waiting_.Add(&run);
  }
  waiting_.Remove(run);
  active_[run.id()] = &run;
  NoteChange(run);
}

Run& RunTable::Restore(StepEffects& out, RestoreRun& restored) {
  const uint64_t id = restored.stored.submission.run;
  next_run_ = std::max(next_run_, id + 1);
  Run& run = runs_.try_emplace(id, options_, out, restored).first->second;
  if (!run.submission().request().empty()) run_of_request_[run.submission().request()] = id;
  if (!IsFinal(run.state())) {
    AddLive(run);
    return run;
  }
  const auto ended_later = [&](int64_t ns, uint64_t other) { return ns < runs_.at(other).info().ended_ns; };
  ended_.insert(std::upper_bound(ended_.begin(), ended_.end(), run.info().ended_ns, ended_later), id);
  return run;
}

absl::Status RunTable::CheckLimits(const SubmitRun& submission, int32_t processes) const {
  if (closed_) return absl::UnavailableError("the coordinator is stopping");
  if (live_.size() >= options_.runs_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(live_.size(), " runs wait or run already; try again later"));
  }
  const RunPlan& plan = *submission.plan;
  if (processes < 0 || processes > plan.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", plan.ranks(),
                                                   " ranks, so it runs on 1 to ", plan.ranks(),
                                                   " processes, not ", processes));
  }
  if (plan.redundancy > 0 && processes == 1) {
    return absl::InvalidArgumentError(
        "redundancy keeps a copy of each stage's state in another process, and this run has one process: use "
        "at least 2, or leave `redundancy` out of the run file");
  }
  const int64_t bytes = plan_bytes_ + plan.bytes;
  if (bytes <= options_.plan_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the plan of this run takes about ", Mebibytes(plan.bytes), ", with those of ",
                   live_.size(), " runs that have not ended ", Mebibytes(bytes), "; the limit is ",
                   Mebibytes(options_.plan_bytes), ": try again when one of them has ended"));
}

void RunTable::Retire(StepEffects& out, uint64_t id) {
  live_.erase(std::lower_bound(live_.begin(), live_.end(), id));
  waiting_.Remove(runs_.at(id));
  active_.erase(id);
  active_dues_.Remove(id);
  running_.erase(id);
  plan_bytes_ -= plan_bytes_of_.extract(id).mapped();
  ended_.push_back(id);
  ForgetOldest(out);
}

void RunTable::ForgetOldest(StepEffects& out) {
  while (ended_.size() > options_.runs_kept) {
    const auto oldest = runs_.find(ended_.front());
    out.effects.records.forgotten.push_back(oldest->first);
    run_of_request_.erase(oldest->second.submission().request());
    runs_.erase(oldest);
    ended_.pop_front();
  }
}

Run* RunTable::Find(uint64_t id) {
  const auto it = runs_.find(id);
  return it == runs_.end() ? nullptr : &it->second;
}

const Run* RunTable::Find(uint64_t id) const {
  const auto it = runs_.find(id);
  return it == runs_.end() ? nullptr : &it->second;
}

bool RunTable::Awaits(int32_t process) const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](const auto& e) { return e.second->Awaits(process); });
}

bool RunTable::IsRunning(uint64_t id) const {
  const Run* run = Find(id);
  return run != nullptr && run->state() == RunState::kRunning;
}

void RunTable::Count(int64_t now, Probe* probe) const {
  probe->running_ns = running_time_.total();
  probe->step_wait_ns = running_time_.step_wait(probe->steps);
  probe->running_since_ns = running_time_.grows_since();
  probe->runs[static_cast<int>(RunState::kWaiting)] += static_cast<int64_t>(waiting_.size());
  for (const auto& [id, run] : active_) {
    ++probe->runs[static_cast<int>(run->state())];
    run->Count(now, probe);
  }
  for (const uint64_t id : ended_) ++probe->runs[static_cast<int>(runs_.at(id).state())];
}

absl::StatusOr<RunInfo> RunTable::Info(uint64_t id) const {
  const Run* run = Find(id);
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("no run ", id));
  return run->InfoWithReports();
}

std::vector<RunInfo> RunTable::List() const {
  std::vector<RunInfo> list;
  for (const auto& [id, run] : runs_) {
    list.push_back(run.info());
    list.back().reports.clear();
    list.back().members.clear();
    list.back().member_of_rank.clear();
  }
  return list;
}

}  // namespace weft
