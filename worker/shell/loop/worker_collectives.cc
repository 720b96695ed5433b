// Implements WorkerLoop's collectives of the device.
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {

// Begins the groups. Returns false if the run has failed in it.
bool WorkerLoop::BeginGroups(int64_t now, PrepareEffect& effect) {
  const Assign& a = effect.assignment;
  // The line is one write, as other processes share the terminal.
  if (!a.reduction.empty())
    std::cerr << absl::StrCat("weft-worker: run ", a.run, ": reduction ", a.reduction, "\n");
  const auto ids = groups_.Begin(device_.collectives(), std::move(effect.groups), now,
                                 {options_.join_timeout_ns, options_.transfer_timeout_ns});
  if (!ids.ok()) {
    Fail(now, ids.status());
    return false;
  }
  for (const auto& [group, id] : *ids) core_.OnGroupId(group, id, &effects_);
  return true;
}

bool WorkerLoop::PollCollectives(int64_t now) {
  if (joining_) {
    const absl::StatusOr<bool> joined = groups_.JoinNext(now);
    if (joined.ok() && !*joined) return false;
    joining_ = false;
    if (joined.ok()) {
      core_.OnPrepared(now, &effects_);
      Apply(now, nullptr);
    } else {
      Fail(now, joined.status());
    }
    return true;
  }
  std::vector<CollectiveGroups::Done> done;
  if (absl::Status status = groups_.Poll(&done); !status.ok()) {
    Fail(now, status);
    return true;
  }
  for (const CollectiveGroups::Done& d : done) {
    core_.OnJointOperationDone(now, d.rank, d.job, &effects_);
    Apply(now, nullptr);
  }
  return !done.empty();
}

// Begins a collective. `from` is the rank's tensor; `whole` is the memory for gathered weights.
void WorkerLoop::BeginCollective(int64_t now, Slot* slot, const Job& job, const Tensor& from,
                                 const Tensor& whole) {
  const Graph& graph = *core_.graph();
  const bool gathers = HasMicrobatch(job.kind);
  const CollectiveKind kind = gathers                                ? CollectiveKind::kAllGather
                              : graph.sync(job.stage).scatters_sum() ? CollectiveKind::kReduceScatter
                                                                     : CollectiveKind::kAllReduce;
  // As a ring sends and receives them.
  const uint64_t n = graph.members(job.stage).size();
  const uint64_t rounds = (kind == CollectiveKind::kAllReduce ? 2 : 1) * (n - 1);
  const uint64_t bytes = rounds * (gathers ? whole : from).bytes / n;
  const auto tensor = static_cast<int>(gathers ? TensorKind::kWeights : TensorKind::kGradientSum);
  slot->bytes_sent[tensor] += bytes;
  slot->bytes_received[tensor] += bytes;
  const absl::Status status =
      groups_.Start(graph.joint_order().GroupOf(job.stage), slot->rank, job, kind, from, whole);
  if (!status.ok()) Fail(now, status);
}

}  // namespace weft
