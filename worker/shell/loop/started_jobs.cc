#include "worker/shell/loop/started_jobs.h"

#include <algorithm>
#include <utility>

#include "worker/shell/compute/non_finite.h"

namespace weft {

StartedJobs::Start StartedJobs::FactsOf(const StartEffect& start) {
  return {start.rank,  start.job, start.last(), start.overlapped, start.Does(Operation::kSendState),
          start.leaves};
}

void StartedJobs::BeginRun(const Graph& graph, std::shared_ptr<const RunSpec> spec) {
  graph_ = &graph;
  spec_ = std::move(spec);
}

void StartedJobs::Clear() {
  graph_ = nullptr;
  holders_.Clear();
  hashes_.clear();
}

JobTask StartedJobs::Gather(StartEffect effect) {
  JobTask task;
  task.inputs = exchange_.Take(effect.inputs);
  task.gradients = exchange_.Take(effect.gradients);
  if (effect.round == JobRound::kEndJoint) task.collected = communicators_.TakeResult(effect.job);
  task.parts = static_cast<int>(graph_->members(effect.job.stage).size());
  if (spec_->record_hashes) {
    task.hashes = HashTaskFor(*graph_, effect, spec_->first_step(),
                              [this](Rank rank) { return seats_.Of(rank) != nullptr; });
  }
  if (effect.Does(Operation::kBeginState) || effect.Does(Operation::kReceiveState)) {
    holders_.Come(effect.rank, effect.job);
  } else if (effect.has_state) {
    holders_.Stay(effect.rank, effect.job);
  }
  task.start = std::move(effect);
  return task;
}

absl::Status StartedJobs::Returned(int64_t now, const Start& start, const JobOutcome& outcome) {
  events_.JobEnds(now, start.rank, start.job, outcome.status, outcome.launched != nullptr);
  if (outcome.activation_bytes.has_value())
    seats_.NoteActivationBytes(start.rank, start.job.stage, *outcome.activation_bytes);
  if (outcome.bytes.has_value() && !graph_->has_pairs())
    seats_.NoteJobBytes(start.rank, start.job, *outcome.bytes);
  absl::Status status;
  if (outcome.contribution.has_value()) status = BeginJointOperation(now, start, outcome);
  if (start.sends_state) holders_.Leave(start.rank, start.job);
  if (!outcome.hashes.empty()) {
    std::vector<ValueHash>& hashes = hashes_[start.job];
    hashes.insert(hashes.end(), outcome.hashes.begin(), outcome.hashes.end());
  }
  if (outcome.launched != nullptr) {
    device_work_.Add(
        LaunchedJobs::Launch{start.rank, start.job, start.last, start.overlapped, now, outcome.launched});
  }
  return status;
}

absl::Status StartedJobs::BeginJointOperation(int64_t now, const Start& start, const JobOutcome& outcome) {
  const Operation operation = JointOperationOf(*graph_, start.job);
  const uint64_t bytes =
      RingBytes(operation, *outcome.contribution, outcome.whole, graph_->members(start.job.stage).size());
  const auto tensor =
      static_cast<int>(operation == Operation::kJoinGather ? TensorKind::kWeights : TensorKind::kGradientSum);
  Seat* const seat = seats_.Of(start.rank);
  seat->bytes_sent[tensor] += bytes;
  seat->bytes_received[tensor] += bytes;
  return communicators_.Start(now, graph_->joint_order().GroupOf(start.job.stage), start.rank, start.job,
                              operation, *outcome.contribution, outcome.whole);
}

std::vector<ValueHash> StartedJobs::TakeHashes(const Job& job) {
  const auto found = hashes_.find(job);
  if (found == hashes_.end()) return {};
  std::vector<ValueHash> hashes = std::move(found->second);
  hashes_.erase(found);
  return hashes;
}

JobDone StartedJobs::Done(const Start& start, const JobOutcome& outcome) {
  return {start.rank,
          start.job,
          outcome.start_ns,
          outcome.end_ns,
          start.last,
          outcome.loss,
          outcome.activation_bytes,
          outcome.gradient_norm,
          /*launched=*/false,
          start.last ? TakeHashes(start.job) : std::vector<ValueHash>()};
}

JobDone StartedJobs::DoneOnDevice(int64_t now, const LaunchedJobs::Launch& launch,
                                  LaunchedJobs::Ended* ended) {
  events_.DoneOnDevice(now, launch.rank, launch.job, ended->status);
  const LaunchedJob::Figures& figures = ended->figures;
  JobDone done{launch.rank, launch.job, now, now, launch.last, figures.loss, {}, figures.gradient_norm};
  done.launched = true;
  if (launch.last) done.hashes = TakeHashes(launch.job);
  if (ended->status.ok())
    ended->status = CheckFigures(*spec_, launch.job, figures.loss, figures.gradient_norm);
  if (!ended->status.ok()) return done;
  // The device's clock may be a little off.
  done.end_ns = std::min(now, figures.end_ns);
  done.start_ns = std::min(done.end_ns, figures.start_ns);
  return done;
}

}  // namespace weft
