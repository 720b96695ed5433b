#include "worker/shell/loop/migrating_state.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/shell/compute/training_state.h"

namespace weft {

absl::Status ReceiveState(RankWeights& compute, JobTask* task) {
  const StartEffect& start = task->start;
  absl::Status status;
  if (start.Does(Operation::kBeginState)) status = AsDamagedCheckpoint(compute.BeginState(start.job));
  for (size_t i = 0; i < task->inputs.size(); ++i) {
    if (start.inputs[i].kind != TensorKind::kState) continue;
    status = compute.InstallState(start.job, std::exchange(task->inputs[i], {}));
  }
  if (!status.ok() || compute.HasState(start.job.stage)) return status;
  std::fprintf(stderr, "weft: broken invariant: rank %d is to run %s and does not have the stage's state\n",
               start.rank, Describe(start.job).c_str());
  std::abort();
}

absl::Status PassStateOn(RankWeights& compute, const StartEffect& start, Tensor* state) {
  if (start.Does(Operation::kDropVersion)) compute.DropWeights(start.job.stage, start.version);
  if (!start.Does(Operation::kSendState)) return absl::OkStatus();
  absl::StatusOr<Tensor> given = compute.GiveState(start.job);
  if (!given.ok()) return given.status();
  *state = *std::move(given);
  return absl::OkStatus();
}

}  // namespace weft
