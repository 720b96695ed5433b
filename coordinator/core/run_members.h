// Holds the processes of one run, its members, and the lease that each of its ranks has on one of them.
//
// A lease is a token; a message about a rank counts only with the rank's present token, from the session of
// the rank's member. run_placement.h says on which member each rank lies.
//
// Invariants: members keep their number when their process is gone; tokens of a rank grow strictly over all
// leases that one FencingNumbers has given. A value, pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_MEMBERS_H_
#define WEFT_COORDINATOR_CORE_RUN_MEMBERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/events.h"

namespace weft {

// A process of a run.
struct RunMember {
  SessionId session = 0;  // 0: it is not back, after a coordinator was started again
  int32_t process = -1;
  std::string label;
  bool alive = true;
  bool prepared = false;
  bool finished = false;
  bool failed = false;  // true if it has reported a failure, and waits to be told what becomes of the attempt
  std::string stalled;  // sentence about its vain wait; "" while it gets on
  std::string slow;     // sentence about its jobs that take long; "" for none
  bool stuck = false;   // true if one of its jobs has passed its deadline: the process is to end
};

// Numbers that distinguish messages of an earlier attempt from those of the present one.
struct FencingNumbers {
  uint64_t epoch = 1;  // epoch of the last attempt
  uint64_t next_token = 1;
};

class RunMembers {
 public:
  void Add(RunMember member) { members_.push_back(std::move(member)); }
  // Begins an attempt: gives each rank a lease, on the member of that number.
  void Lease(const std::vector<int>& member_of_rank, FencingNumbers* numbers);
  // Takes up the processes and leases of a stored attempt. No process counts as back yet.
  void Restore(const AttemptRecord& attempt, const std::vector<int>& member_of_rank);
  // Notes that a member is back, in that session, and prepared.
  void Join(int member, SessionId session);
  void Clear();

  const std::vector<RunMember>& all() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  const RunMember& at(int number) const { return members_[number]; }
  RunMember* Find(SessionId session);
  const RunMember* Find(SessionId session) const { return const_cast<RunMembers*>(this)->Find(session); }
  int NumberOf(SessionId session) const;  // number of the member; -1 for none
  // Returns true if the process has done its part of the run.
  bool HasFinished(SessionId session) const;

  int ranks() const { return static_cast<int>(ranks_.size()); }
  uint64_t epoch() const { return epoch_; }
  const RunMember& MemberOf(Rank rank) const { return members_[ranks_[rank].member]; }
  // Returns the process of the first rank, which completes checkpoints and validates their weights.
  const RunMember& first() const { return MemberOf(0); }
  std::vector<Rank> RanksOf(const RunMember& member) const;
  uint64_t first_token() const { return ranks_.front().token.sequence; }
  const Token& TokenOf(Rank rank) const { return ranks_[rank].token; }
  int32_t CreditOf(Rank rank) const { return ranks_[rank].credit; }
  void SetCredit(Rank rank, int32_t credit) { ranks_[rank].credit = credit; }
  // Returns true if the rank exists and is on the member of the session.
  bool Has(SessionId session, Rank rank) const;
  // Returns true if also the token is the rank's present one.
  bool Holds(SessionId session, Rank rank, const Token& token) const {
    return Has(session, rank) && TokenOf(rank) == token;
  }
  std::vector<RankLease> LeasesOf(int member) const;
  std::vector<int32_t> ProcessOfRank() const;
  std::vector<int32_t> MemberOfRank() const;

  // Returns true if every member has done its part of the run, or is given up.
  bool AllFinished() const;
  // Returns true if every member that is alive has the flag.
  bool AllAlive(bool RunMember::*flag) const;
  // Returns "process 1 (..) and process 3 (..)": members whose flag is not set.
  std::string Missing(bool RunMember::*flag) const;
  // Returns "process 1 (..): <sentence>; .." of the first four stalls and slow jobs; "" for none.
  std::string Stalls() const;

 private:
  void PlaceRanks(const std::vector<int>& member_of_rank, uint64_t epoch, uint64_t first_token);

  struct RunRank {
    int member = 0;
    Token token;
    int32_t credit = 0;
  };

  std::vector<RunMember> members_;
  std::vector<RunRank> ranks_;
  uint64_t epoch_ = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_MEMBERS_H_
