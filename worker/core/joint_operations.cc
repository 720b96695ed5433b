#include "worker/core/joint_operations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedules/sync/reduction_mode.h"

namespace weft {

std::string UseJointOperations(const Assign& assign, LocalRun::Shape* shape) {
  if (assign.reduction_mode != ReductionMode::kFast) return "";
  shape->schedule.terms.reduction = assign.reduction_mode;
  shape->tables = nullptr;  // they are of the schedule as it was
  if (assign.leases.size() == 1) return "";
  return absl::StrCat("collectives need a process for each rank, and this one has ", assign.leases.size());
}

std::vector<PrepareEffect::Group> JointOperations::Groups() const {
  std::vector<PrepareEffect::Group> mine;
  const auto& groups = run_.graph().joint_order().groups();
  for (int number = 0; number < static_cast<int>(groups.size()); ++number) {
    for (int self = 0; self < static_cast<int>(groups[number].size()); ++self) {
      const Rank rank = groups[number][self];
      if (run_.IsLocal(rank)) mine.push_back({number, rank, groups[number], self});
    }
  }
  return mine;
}

JointOperations::Operation& JointOperations::OperationOf(const Job& job) {
  Operation& operation = operations_[run_.IdOf(job)];
  if (operation.missing >= 0) return operation;
  std::vector<Edge> edges;
  run_.graph().Predecessors(job, &edges);
  operation.missing = static_cast<int>(std::count_if(edges.begin(), edges.end(), [this](const Edge& e) {
    return run_.graph().BeginsJointly(e) && !run_.IsBeforeRun(e);
  }));
  const std::optional<Job> before = run_.graph().joint_order().Before(job);
  operation.missing += before.has_value() && before->step >= run_.first_step();
  return operation;
}

JobRound JointOperations::Start(const Job& job) {
  return std::exchange(OperationOf(job).begun, true) ? JobRound::kEndJoint : JobRound::kBeginJoint;
}

std::optional<Job> JointOperations::NoteBegun(const Job& job) {
  const Job next = run_.graph().joint_order().After(job);
  if (next.step >= run_.steps()) return std::nullopt;
  InputArrived(next);
  return next;
}

bool JointOperations::AwaitsGather(const Job& job, int missing) const {
  if (!run_.graph().GathersWeights(job) || missing != 1) return false;
  const auto found = operations_.find(run_.IdOf(job));
  return found != operations_.end() && found->second.begun;
}

}  // namespace weft
