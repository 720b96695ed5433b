// The edges of reduces that are collectives (Schedule::collective, collectives.h).
//
// A member starts when the backwards on its own rank have ended. That it ends after those of the other
// members, and after the collectives that stand before it on any member's device, are joined edges: nobody
// sends anything for them. Where gradients are clipped, the job that totals the norms does so after its
// collective, and devices go on meanwhile; here the next one counts as behind that too.
#include <algorithm>

#include "schedules/graph.h"

namespace weft {

// Each member with its own copy, so that no job on another rank reads that; or, where each has a slice, with
// what it gathers. Then every gradient is made by a member, which can add it to its own sum.
bool Graph::MembersComputeAlone(int stage) const {
  const std::vector<Rank>& members = members_[stage];
  for (int step = 0; step < schedule_.period; ++step) {
    for (int b = 0; b < schedule_.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, input_backward(), final_backward()}) {
        const Job job = Job::Compute(step, stage, b, kind);
        const Rank rank = schedule_.compute(job);
        const bool alone = sharded() ? std::binary_search(members.begin(), members.end(), rank)
                                     : rank == schedule_.weights(job);
        if (!alone) return false;
      }
    }
  }
  return true;
}

void Graph::CollectivePredecessors(const Job& reduce, std::vector<Edge>* edges) const {
  const std::vector<Rank>& members = members_[reduce.stage];
  const Rank rank = members[reduce.member];
  for (int b = 0; b < schedule_.microbatches; ++b) {
    const Job backward = Job::Compute(reduce.step, reduce.stage, b, final_backward());
    edges->push_back({backward, reduce, TensorKind::kOrder, 0, 0, schedule_.compute(backward) != rank});
  }
  for (int m = 0; m < static_cast<int>(members.size()); ++m) {
    const std::optional<Job> before = collectives_.Before(Job::Reduce(reduce.step, reduce.stage, m));
    if (!before.has_value()) continue;
    // One that this rank is a member of too stands before this one here as well.
    const std::vector<Rank>& others = members_[before->stage];
    if (m != reduce.member && std::binary_search(others.begin(), others.end(), rank)) continue;
    edges->push_back({*before, reduce, TensorKind::kOrder, 0, 0, true});
  }
}

void Graph::CollectiveSuccessors(const Job& reduce, std::vector<Edge>* edges) const {
  const std::vector<Rank>& mine = members_[reduce.stage];
  const Job after = collectives_.After(reduce);
  for (int m = 0; m < static_cast<int>(members_[after.stage].size()); ++m) {
    const Rank rank = members_[after.stage][m];
    if (m != after.member && std::binary_search(mine.begin(), mine.end(), rank)) continue;
    edges->push_back({reduce, Job::Reduce(after.step, after.stage, m), TensorKind::kOrder, 0, 0, true});
  }
}

void Graph::JoinedGradients(const Job& backward, std::vector<Edge>* edges) const {
  const Rank rank = schedule_.compute(backward);
  for (int m = 0; m < static_cast<int>(members_[backward.stage].size()); ++m) {
    edges->push_back({backward, Job::Reduce(backward.step, backward.stage, m), TensorKind::kOrder, 0, 0,
                      members_[backward.stage][m] != rank});
  }
}

}  // namespace weft
