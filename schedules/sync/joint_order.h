// Defines the order of collectives: which jobs of a run are done by all members' devices together, and which
// of them comes before which. They are reduces, the sums of a stage's gradients; and, where every rank
// computes one micro-batch of a step with weights that are held in slices by all, the gathers of these, one
// for each forward and backward. A gather has no job of its own: it is named by the compute job that it is
// for.
//
// A collective ends when all its members have started it. A device does its collectives one after the other,
// in the order in which they were started there; so two devices that start two of them in different orders
// wait for each other for ever. There is one order for all ranks: by step. Within a step reduces go from the
// last stage to the first, as the backwards end. With gathers all ranks compute the same list: forwards from
// the first stage to the last, then backwards back. Gathers go in the order of that list, each begun when the
// job two before in it has ended, so that the weights of two jobs at most are put together at a time: those
// of the one that computes, and those of the next. A reduce stands behind the gather that the end of its
// backward lets begin too. Each rank starts the collectives that it is a member of in that order, a reduce
// when the backwards of the stage that the rank itself computes in the step have ended; it goes on with other
// jobs meanwhile.
//
// Why nothing waits for ever: take all jobs of all steps in this order: the forwards and backwards of step
// 0, its collectives in their order, its updates, then those of step 1, and so on. A forward or backward
// waits for forwards and backwards of its own or earlier steps, and for updates of earlier ones: its own
// rank's, or those of all members whose slices of the weights it gathers. A reduce waits for backwards of
// its step and, on the device of each member, for collectives before it; not for a norm (where gradients are
// clipped, the norm is taken after the sum), nor for a rank to be idle longer than its present job. An
// update waits for the collective of its stage and, for a norm, for those of its step. So every job waits
// for jobs before it in that order only, but for forwards and backwards of one step, among which the
// schedule has no circle (check.h); the first job that has not ended can always go on. A gather waits for
// jobs before its own in the list, on every rank, and for collectives before it, whose jobs are before its
// own too: put it in front of its job. Admission changes nothing: the jobs that free activations wait for no
// collective of a step that is not over elsewhere, as deadlock.h looks at with the edges of collective.cc.
//
// Pure; immutable once the stages, ascending, and then the gathers have been added.
#ifndef WEFT_SCHEDULES_SYNC_JOINT_ORDER_H_
#define WEFT_SCHEDULES_SYNC_JOINT_ORDER_H_

#include <map>
#include <optional>
#include <vector>

#include "schedules/job.h"

namespace weft {

class JointOrder {
 public:
  // Adds a stage that reduces by collectives of these ranks, ascending.
  void Add(int stage, const std::vector<Rank>& members);
  // All stages have been added, with the same members: of each step the m-th computes `microbatches[m]`, all
  // of it and nothing else, and the weights of its forwards and backwards are gathered.
  void AddGathers(const std::vector<int>& microbatches);

  bool any() const { return !groups_.empty(); }
  bool gathers() const { return !rank_of_microbatch_.empty(); }
  bool IsJoint(int stage) const {
    return stage < static_cast<int>(group_of_stage_.size()) && group_of_stage_[stage] >= 0;
  }

  // Returns the sets of ranks that have collectives together, each once, numbered in the order of the first
  // stages.
  const std::vector<std::vector<Rank>>& groups() const { return groups_; }
  int GroupOf(int stage) const { return group_of_stage_[stage]; }

  // Return the collective that the same rank starts before that of this job, or after it; of the step before,
  // or behind, at the ends of a step. Nothing comes before the first of step 0.
  std::optional<Job> Before(const Job& job) const;
  Job After(const Job& job) const;
  // Returns the last reduce that the same rank starts before that of this job; nothing before the first of
  // step 0.
  std::optional<Job> ReduceBefore(const Job& job) const;

  // Returns the micro-batch that the rank computes, with gathers.
  int MicrobatchOf(Rank rank) const { return orders_.at(rank).computed.front().microbatch; }
  // Return, for a compute job whose weights are gathered, the job of its rank whose end makes room for them,
  // and the one to which its own end gives room; nothing at the ends of a step's list.
  std::optional<Job> RoomFrom(const Job& job) const;
  std::optional<Job> RoomFor(const Job& job) const;

 private:
  // The jobs that a rank starts in each step, as of step 0.
  struct Order {
    std::vector<Job> jobs;
    std::map<Job, int> place;  // in `jobs`
    void Number();
    std::vector<Job> computed;  // the list of forwards and backwards, where there are gathers
  };
  const Order& OrderOf(const Job& job) const;
  std::optional<Job> Computed(const Job& job, int behind) const;

  std::vector<std::vector<Rank>> groups_;
  std::vector<int> group_of_stage_;  // -1: none
  std::map<Rank, Order> orders_;
  std::vector<Rank> rank_of_microbatch_;  // empty without gathers
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_JOINT_ORDER_H_
