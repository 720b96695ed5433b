// Implements WorkerCore's jobs that begin with a collective.
#include <algorithm>
#include <optional>
#include <utility>

#include "worker/core/worker_run.h"

namespace weft {

std::vector<PrepareEffect::Group> WorkerCore::Run::Groups() const {
  std::vector<PrepareEffect::Group> mine;
  const auto& groups = graph.joint_order().groups();
  for (int number = 0; number < static_cast<int>(groups.size()); ++number) {
    for (int self = 0; self < static_cast<int>(groups[number].size()); ++self) {
      const Rank rank = groups[number][self];
      if (IsLocal(rank)) mine.push_back({number, rank, groups[number], self});
    }
  }
  return mine;
}

// Returns the joining of a job. A reduce begins behind the backwards of its rank, a gather behind the update
// of the slice and the job that makes room; each behind the collective that the rank begins before it.
WorkerCore::Run::Joining& WorkerCore::Run::JoiningOf(int64_t id) {
  Joining& joining = this->joining[id];
  if (joining.left >= 0) return joining;
  const Job job = JobOf(id);
  std::vector<Edge> edges;
  graph.Predecessors(job, &edges);
  joining.left = static_cast<int>(std::count_if(edges.begin(), edges.end(), [this](const Edge& e) {
    return graph.BeginsJointly(e) && !IsBeforeRun(e);
  }));
  const std::optional<Job> before = graph.joint_order().Before(job);
  joining.left += before.has_value() && before->step >= first_step;
  return joining;
}

bool WorkerCore::Run::AwaitsGather(int64_t id) {
  if (!graph.GathersWeights(JobOf(id)) || MissingOf(id) != 1) return false;
  const auto found = joining.find(id);
  return found != joining.end() && found->second.begun;
}

void WorkerCore::JointOperationBegun(const Job& job) {
  Run& run = *run_;
  const Job next = run.graph.joint_order().After(job);
  if (next.step >= run.steps) return;
  const int64_t id = run.IdOf(next);
  --run.JoiningOf(id).left;
  if (run.FlagsOf(id) & kClaimed) Consider(id);
}

void WorkerCore::OnGroupId(int group, const std::string& id, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  out->push_back(SendEffect{GroupId{run_->assignment.run, run_->assignment.epoch, group, id}});
}

void WorkerCore::OnIdOfGroup(const GroupId& id, WorkerEffects* out) {
  if (next_.has_value() && next_->run == id.run && next_->epoch == id.epoch) {
    next_ids_.push_back(id);
  } else if (run_ && run_->assignment.run == id.run && run_->assignment.epoch == id.epoch) {
    if (!run_->failed) out->push_back(JoinEffect{id.group, id.bytes});
  } else {
    ++stale_grants_;
  }
}

void WorkerCore::OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  Run& run = *run_;
  const int64_t id = run.IdOf(job);
  Require(run.RankAt(id) == rank && run.graph.IsJoint(job) && run.JoiningOf(id).begun,
          "only a collective that was begun is over");
  if (job.kind == JobKind::kReduce && run.graph.sync(job.stage).layout() == Layout::kSliced) {
    // So have the backwards of all ranks on the stage, which read this rank's slice.
    for (int b = 0; b < run.graph.schedule().microbatches; ++b)
      run.versions->ReadElsewhere(job.step, job.stage, b, job.member, &run.dropped);
    Drop(out);
  }
  --run.MissingOf(id);
  Consider(id);
  StartJobs(now, out);
}

}  // namespace weft
