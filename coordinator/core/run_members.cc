#include "coordinator/core/run_members.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

void RunMembers::Lease(const std::vector<int>& member_of_rank, FencingNumbers* numbers) {
  PlaceRanks(member_of_rank, ++numbers->epoch, numbers->next_token);
  numbers->next_token += member_of_rank.size();
}

void RunMembers::PlaceRanks(const std::vector<int>& member_of_rank, uint64_t epoch, uint64_t first_token) {
  epoch_ = epoch;
  ranks_.clear();
  for (const int member : member_of_rank) ranks_.push_back({member, {epoch_, first_token++}, 0});
}

void RunMembers::Restore(const AttemptRecord& attempt, const std::vector<int>& member_of_rank) {
  for (const AttemptRecord::Member& m : attempt.members) {
    members_.push_back({0, m.process, m.label});
    members_.back().alive = false;
  }
  PlaceRanks(member_of_rank, attempt.epoch, attempt.first_token);
}

void RunMembers::Join(int member, SessionId session) {
  members_[member].session = session;
  members_[member].alive = members_[member].prepared = true;
}

void RunMembers::Clear() {
  std::vector<RunMember>().swap(members_);
  std::vector<RunRank>().swap(ranks_);
}

RunMember* RunMembers::Find(SessionId session) {
  const int number = NumberOf(session);
  return number < 0 ? nullptr : &members_[number];
}

int RunMembers::NumberOf(SessionId session) const {
  for (size_t m = 0; m < members_.size(); ++m) {
    if (members_[m].session == session) return static_cast<int>(m);
  }
  return -1;
}

bool RunMembers::HasFinished(SessionId session) const {
  const int number = NumberOf(session);
  return number >= 0 && members_[number].finished;
}

bool RunMembers::Has(SessionId session, Rank rank) const {
  return rank >= 0 && rank < ranks() && MemberOf(rank).session == session;
}

std::vector<Rank> RunMembers::RanksOf(const RunMember& member) const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < this->ranks(); ++rank) {
    if (&MemberOf(rank) == &member) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<RankLease> RunMembers::LeasesOf(int member) const {
  std::vector<RankLease> leases;
  for (Rank rank = 0; rank < ranks(); ++rank) {
    if (ranks_[rank].member == member) leases.push_back({rank, ranks_[rank].token});
  }
  return leases;
}

std::vector<int32_t> RunMembers::ProcessOfRank() const {
  std::vector<int32_t> processes;
  processes.reserve(ranks_.size());
  for (const RunRank& rank : ranks_) processes.push_back(members_[rank.member].process);
  return processes;
}

std::vector<int32_t> RunMembers::MemberOfRank() const {
  std::vector<int32_t> members;
  members.reserve(ranks_.size());
  for (const RunRank& rank : ranks_) members.push_back(rank.member);
  return members;
}

bool RunMembers::AllFinished() const {
  return std::all_of(members_.begin(), members_.end(), [](const RunMember& m) { return m.finished; });
}

bool RunMembers::AllAlive(bool RunMember::*flag) const {
  for (const RunMember& m : members_) {
    if (m.alive && !(m.*flag)) return false;
  }
  return true;
}

std::string RunMembers::Missing(bool RunMember::*flag) const {
  std::vector<std::string> labels;
  for (const RunMember& m : members_) {
    if (!(m.*flag)) labels.push_back(m.label);
  }
  return absl::StrJoin(labels, " and ");
}

std::string RunMembers::Stalls() const {
  std::vector<std::string> stalls;
  for (const RunMember& m : members_) {
    for (const std::string* stall : {&m.stalled, &m.slow}) {
      if (!stall->empty() && stalls.size() < 4) stalls.push_back(absl::StrCat(m.label, ": ", *stall));
    }
  }
  return absl::StrJoin(stalls, "; ");
}

}  // namespace weft
