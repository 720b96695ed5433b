#include "coordinator/core/run_placement.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace weft {

bool RunPlacement::Order(const RunMembers& members, const std::vector<Rank>& ranks, SessionId to) {
  const auto is_there = [&](Rank rank) { return members.MemberOf(rank).session == to; };
  if (std::all_of(ranks.begin(), ranks.end(), is_there)) return false;
  Keep(members);
  for (const Rank rank : ranks) session_of_rank_[rank] = to;
  processes_ = {session_of_rank_.begin(), session_of_rank_.end()};
  return true;
}

void RunPlacement::Keep(const RunMembers& members) {
  session_of_rank_.clear();
  for (Rank rank = 0; rank < members.ranks(); ++rank)
    session_of_rank_.push_back(members.MemberOf(rank).session);
  processes_ = {session_of_rank_.begin(), session_of_rank_.end()};
}

int RunPlacement::Leaving(const RunMembers& members) const {
  const auto& all = members.all();
  return static_cast<int>(std::count_if(all.begin(), all.end(), [this](const RunMember& member) {
    return processes_.count(member.session) == 0;
  }));
}

void RunPlacement::Forget() {
  session_of_rank_.clear();
  processes_.clear();
}

std::vector<int> RunPlacement::MemberOfRank(int ranks, const std::vector<SessionId>& sessions) const {
  std::vector<int> members;
  const auto p = static_cast<int64_t>(sessions.size());
  const bool by_order = ordered() && processes_ == std::set<SessionId>(sessions.begin(), sessions.end());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto in_blocks = static_cast<int>(rank * p / ranks);
    const auto found = by_order ? std::find(sessions.begin(), sessions.end(), session_of_rank_[rank])
                                : sessions.begin() + in_blocks;
    members.push_back(static_cast<int>(std::distance(sessions.begin(), found)));
  }
  return members;
}

}  // namespace weft
