#include "coordinator/core/run_return.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr size_t kMaxDeferred = 1 << 20;

bool HasTheseLeases(const std::vector<Reattach::HeldRank>& held, std::vector<RankLease> leases) {
  return std::equal(held.begin(), held.end(), leases.begin(), leases.end(),
                    [](const Reattach::HeldRank& h, const RankLease& lease) {
                      return h.rank == lease.rank && h.token == lease.token;
                    });
}

}  // namespace

RunReturn::RunReturn(AttemptRecord record, const RunFigures& figures, std::string run_id, int64_t until,
                     std::optional<RunEnding> otherwise)
    : record_(std::move(record)),
      run_id_(std::move(run_id)),
      until_(until),
      otherwise_(std::move(otherwise)),
      back_(record_.members.size(), false),
      ended_(record_.first_step) {
  asked_.sealed = figures.sealed;
  asked_.validated = figures.validated;
}

bool RunReturn::Awaits(const std::string& worker) const {
  for (size_t m = 0; m < back_.size(); ++m) {
    if (!back_[m] && record_.members[m].worker == worker) return true;
  }
  return false;
}

bool RunReturn::Awaits(int32_t process) const {
  for (size_t m = 0; m < back_.size(); ++m) {
    if (!back_[m] && record_.members[m].process == process) return true;
  }
  return false;
}

int RunReturn::MemberOf(const Worker& worker) const {
  for (size_t m = 0; m < back_.size(); ++m) {
    const AttemptRecord::Member& member = record_.members[m];
    if (member.worker == worker.hello.worker && member.process == worker.process) return static_cast<int>(m);
  }
  return -1;
}

std::string RunReturn::Take(const Worker& worker, const Reattach& reattach, RunMembers* members) {
  const int member = MemberOf(worker);
  if (member < 0 || back_[member]) return "it is none of the processes of the attempt";
  if (reattach.run_id != run_id_ || reattach.epoch != record_.epoch)
    return absl::StrCat("it serves the attempt ", reattach.epoch, ", not ", record_.epoch);
  if (!HasTheseLeases(reattach.ranks, members->LeasesOf(member)))
    return "its ranks have other tokens than the attempt gave them";
  back_[member] = true;
  members->Join(member, worker.session);
  Note(member, &members->at(member) == &members->first(), reattach);
  return "";
}

void RunReturn::Note(int member, bool first, const Reattach& reattach) {
  ended_ = std::max(ended_, reattach.ended);
  asked_.sealed = std::max(asked_.sealed, reattach.sealed);
  asked_.validated = std::max(asked_.validated, reattach.validated);
  ranks_.insert(ranks_.end(), reattach.ranks.begin(), reattach.ranks.end());
  for (const Reattach::AskedSnapshot& s : reattach.snapshots) {
    asked_.snapshots[s.step].insert(member);
    if (s.seal && first)
      asked_.seals[s.step] = SealCheckpoint{record_.run, s.step, 0, s.drop, s.validate, s.passing};
  }
  if (first) asked_.validations.insert(reattach.validations.begin(), reattach.validations.end());
}

bool RunReturn::complete() const {
  return std::all_of(back_.begin(), back_.end(), [](bool back) { return back; });
}

std::string RunReturn::Progress() const {
  const auto back = std::count(back_.begin(), back_.end(), true);
  return absl::StrCat(back, " of ", back_.size(), " processes ", back == 1 ? "is" : "are", " back");
}

bool RunReturn::Defer(SessionId from, FromWorker message) {
  if (deferred_.size() >= kMaxDeferred) return false;
  deferred_.emplace_back(from, std::move(message));
  return true;
}

}  // namespace weft
