#include "worker/shell/loop/job_runner.h"

#include <utility>

#include "absl/status/statusor.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/loop/migrating_state.h"

namespace weft {
namespace {

// Takes the weights that came with the job, which then holds them no more: a copy, or slices, which are put
// together. For a state that is passing through, returns the version that the job reads: once it is gone, no
// pass may refer to it.
absl::StatusOr<Tensor> TakeWeights(RankWeights& compute, JobTask* task) {
  if (task->start.has_state) return compute.Weights(task->start.job.stage, task->start.version);
  if (task->start.round == JobRound::kEndJoint) return std::move(task->collected);
  const bool in_slices = task->start.Does(Operation::kGatherWeights);
  std::vector<Tensor> slices(task->parts);
  Tensor whole;
  for (size_t i = 0; i < task->inputs.size(); ++i) {
    const TensorKey& key = task->start.inputs[i];
    if (key.kind != TensorKind::kWeights) continue;
    (in_slices ? slices[key.part] : whole) = std::move(task->inputs[i]);
  }
  if (!in_slices) return whole;
  return compute.GatherWeights(task->start.job, slices, task->start.version);
}

// Returns the inputs of the given kind, in the order of the graph's edges.
std::vector<Tensor> InputsOf(const JobTask& task, TensorKind kind) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    if (task.start.inputs[i].kind == kind) inputs.push_back(task.inputs[i]);
  }
  return inputs;
}

void RunForward(RankCompute& compute, const JobTask& task, Tensor weights, JobOutcome* outcome) {
  std::vector<Tensor> inputs = InputsOf(task, TensorKind::kActivation);
  const StartEffect& start = task.start;
  if (task.hashes.has_value()) NoteInitialWeights(task, compute, weights, outcome);
  auto result = start.Does(Operation::kForwardOnly)
                    ? compute.ForwardOnly(start.job, std::move(inputs), std::move(weights), start.version)
                    : compute.Forward(start.job, std::move(inputs), std::move(weights), start.version);
  if (!result.ok()) {
    outcome->status = result.status();
    return;
  }
  outcome->activation = std::move(result->activation);
  outcome->loss = result->loss;
  outcome->activation_bytes = result->activation_bytes;
}

// Adds the gradient to the running sum of the micro-batches before.
void PassSumOn(RankUpdates& compute, const JobTask& task, JobOutcome* outcome) {
  outcome->gradient_sum = std::exchange(outcome->gradient, {});
  const std::vector<Tensor> before = InputsOf(task, TensorKind::kGradientSum);
  if (before.empty()) return;
  auto sum = compute.AddToSum(task.start.job, before.front(), std::move(outcome->gradient_sum));
  if (sum.ok()) {
    outcome->gradient_sum = *std::move(sum);
  } else {
    outcome->status = sum.status();
  }
}

void RunBackward(RankCompute& compute, const JobTask& task, Tensor weights, JobOutcome* outcome) {
  if (task.start.Does(Operation::kRemakeForward)) {
    outcome->status = compute.TakePass(task.start.job, InputsOf(task, TensorKind::kActivation));
    if (!outcome->status.ok()) return;
  }
  const bool adds_to_sum = task.start.Does(Operation::kAddToSum);
  auto result =
      compute.Backward(task.start.job, InputsOf(task, TensorKind::kInputGradient), std::move(weights),
                       task.start.version, adds_to_sum || task.start.Does(Operation::kHandOutGradient));
  if (!result.ok()) {
    outcome->status = result.status();
    return;
  }
  if (task.hashes.has_value() && task.start.job.kind != JobKind::kBackwardInput)
    NoteGradient(task, *result, !adds_to_sum, outcome);
  outcome->input_gradients = std::move(result->input_gradients);
  outcome->gradient = std::move(result->gradient);
  if (adds_to_sum) PassSumOn(compute, task, outcome);
}

void BeginGather(RankWeights& compute, const JobTask& task, JobOutcome* outcome) {
  auto slice = compute.Weights(task.start.job.stage, task.start.version);
  auto whole = compute.RoomForWeights(task.start.job);
  outcome->status = slice.ok() ? whole.status() : slice.status();
  if (!outcome->status.ok()) return;
  outcome->contribution = *std::move(slice);
  outcome->whole = *std::move(whole);
}

void RunPass(RankCompute& compute, JobTask& task, JobOutcome* outcome) {
  if (task.start.round == JobRound::kBeginJoint) return BeginGather(compute, task, outcome);
  absl::StatusOr<Tensor> weights = TakeWeights(compute, &task);
  if (weights.ok() && task.start.Does(Operation::kKeepWeights)) outcome->kept_weights = *weights;
  if (!weights.ok()) {
    outcome->status = weights.status();
  } else if (task.start.job.kind == JobKind::kForward) {
    RunForward(compute, task, *std::move(weights), outcome);
  } else {
    RunBackward(compute, task, *std::move(weights), outcome);
  }
}

absl::Status AddGradients(RankUpdates& compute, const JobTask& task) {
  const int part = task.start.job.member;
  for (size_t i = 0; i < task.gradients.size(); ++i) {
    absl::Status s = compute.Accumulate(task.start.job, task.start.gradients[i].microbatch, task.gradients[i],
                                        part, task.parts);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

void RunReduce(RankUpdates& compute, const JobTask& task, JobOutcome* outcome) {
  outcome->status = AddGradients(compute, task);
  const Job& job = task.start.job;
  if (task.start.round == JobRound::kBeginJoint) {
    auto own = compute.TakeSum(job, 0, 1);
    outcome->status = own.status();
    if (own.ok()) outcome->contribution = *std::move(own);
    return;
  }
  if (!outcome->status.ok() || !task.start.last()) return;
  // A running sum came from the last micro-batch's backward, and is whole; so is the result of a collective
  // that does not scatter it.
  std::vector<Tensor> made = InputsOf(task, TensorKind::kGradientSum);
  if (task.start.round == JobRound::kEndJoint) made = {task.collected};
  const bool whole = !made.empty() && !task.start.Does(Operation::kReduceScatter);
  const int part = whole ? 0 : job.member, parts = whole ? 1 : task.parts;
  absl::StatusOr<Tensor> sum =
      made.empty() ? compute.TakeSum(job, part, parts) : absl::StatusOr<Tensor>(made.front());
  if (!sum.ok()) {
    outcome->status = sum.status();
    return;
  }
  outcome->gradient_sum = *std::move(sum);
  if (!task.start.Does(Operation::kSumSquares)) return;
  auto squares =
      compute.SumSquares(job, outcome->gradient_sum, part, parts, InputsOf(task, TensorKind::kNorm));
  if (!squares.ok()) {
    outcome->status = squares.status();
    return;
  }
  outcome->squares = *std::move(squares);
}

// Returns true if the sum that an update takes is the running one of the last micro-batch's backward, with no
// reduce between.
bool ComesFromBackward(const JobTask& task) {
  for (const TensorKey& key : task.start.inputs) {
    if (key.kind == TensorKind::kGradientSum) return key.microbatch >= 0;
  }
  return false;
}

void RunUpdate(RankCompute& compute, const JobTask& task, JobOutcome* outcome) {
  if (task.start.Does(Operation::kInstallWeights)) {
    const Tensor made_elsewhere = InputsOf(task, TensorKind::kWeights).front();
    outcome->status = compute.InstallWeights(task.start.job, made_elsewhere, task.start.leaves.keeps_old());
    return;
  }
  const bool steps = task.start.Does(Operation::kStep) || task.start.Does(Operation::kClippedStep);
  if (!steps) return;  // the run begins with the version
  outcome->status = AddGradients(compute, task);
  if (!outcome->status.ok() || !task.start.last()) return;
  // The parts come in the order of members.
  std::vector<Tensor> sums = InputsOf(task, TensorKind::kGradientSum);
  const bool in_parts = task.start.Does(Operation::kAccumulate);
  if (sums.empty() && (in_parts || task.hashes.has_value())) {
    auto sum = in_parts ? compute.TakeSum(task.start.job, task.start.job.member, task.parts)
                        : compute.TakeSum(task.start.job, 0, 1);
    if (!sum.ok()) {
      outcome->status = sum.status();
      return;
    }
    sums.push_back(*std::move(sum));
    if (task.hashes.has_value()) NoteSum(task, compute, sums.front(), outcome);
  } else if (task.hashes.has_value() && ComesFromBackward(task)) {
    NoteSum(task, compute, sums.front(), outcome);
  }
  const std::vector<Tensor> norm = InputsOf(task, TensorKind::kNorm);
  outcome->status = compute.Update(task.start.job, sums, norm.empty() ? Tensor() : norm.front(),
                                   task.start.leaves.keeps_old());
}

// Runs the update, and takes what is to be saved around it: the version that it writes over before, all else
// behind it.
void RunSavedUpdate(RankCompute& compute, const JobTask& task, JobOutcome* outcome) {
  const int stage = task.start.job.stage;
  const LeftByUpdate& leaves = task.start.leaves;
  if (leaves.takes_snapshot() && !leaves.keeps_old())
    outcome->status = compute.BeginSnapshot(stage, *task.snapshot_memory);
  if (outcome->status.ok() && !task.folder.empty()) outcome->status = compute.BeginSave(stage, task.folder);
  if (outcome->status.ok()) RunUpdate(compute, task, outcome);
  if (outcome->status.ok() && leaves.takes_snapshot())
    outcome->snapshot = compute.Snapshot(stage, *task.snapshot_memory);
}

void RunKind(RankCompute& compute, JobTask& task, JobOutcome* outcome) {
  switch (task.start.job.kind) {
    case JobKind::kForward:
    case JobKind::kBackward:
    case JobKind::kBackwardInput:
    case JobKind::kBackwardWeight:
      return RunPass(compute, task, outcome);
    case JobKind::kReduce:
      return RunReduce(compute, task, outcome);
    case JobKind::kUpdate:
      return RunSavedUpdate(compute, task, outcome);
  }
}

// Puts the job's fence on outputs in the device's memory: their users let the device wait, or wait for it. A
// tensor in host memory came with the job, and is there: the sum that a reduce passes on.
void FenceOutputs(JobOutcome* outcome) {
  const auto fence = [&](Tensor* tensor) {
    if (tensor->place == MemoryPlace::kDevice && tensor->ready == nullptr) tensor->ready = outcome->launched;
  };
  for (Tensor* tensor : {&outcome->activation, &outcome->gradient, &outcome->gradient_sum, &outcome->squares,
                         &outcome->state}) {
    fence(tensor);
  }
  for (Tensor& gradient : outcome->input_gradients) fence(&gradient);
  if (outcome->contribution.has_value()) fence(&*outcome->contribution);
  fence(&outcome->whole);
}

void ReadNorm(JobOutcome* outcome) {
  if (outcome->squares.empty()) return;
  const auto sum_of_squares = SumOfSquares::FromTensor(outcome->squares);
  if (sum_of_squares.ok()) outcome->gradient_norm = sum_of_squares->Norm();
}

}  // namespace

Tensor JobOutcome::Output(TensorKind kind, int part, int parts) const {
  switch (kind) {
    case TensorKind::kActivation:
      return activation;
    case TensorKind::kInputGradient:
      return input_gradients.at(part);
    case TensorKind::kGradient:
      return parts == 1 ? gradient : Slice(gradient, part, parts);
    case TensorKind::kGradientSum:
      return gradient_sum;
    case TensorKind::kNorm:
      return squares;
    case TensorKind::kState:
      return state;
    case TensorKind::kOrder:
    case TensorKind::kWeights:
    case TensorKind::kCopy:
      break;
  }
  return {};
}

JobOutcome RunJob(RankCompute& compute, JobTask task, const std::function<void()>& begun) {
  JobOutcome outcome;
  outcome.start_ns = MonotonicNow();
  compute.BeginJob(task.start.job, task.start.overlapped);
  if (begun) begun();
  if (task.start.has_state) outcome.status = ReceiveState(compute, &task);
  if (task.hashes.has_value()) NoteArrived(task, compute, &outcome);
  if (outcome.status.ok()) RunKind(compute, task, &outcome);
  if (task.hashes.has_value() && outcome.status.ok()) NoteResults(task, compute, &outcome);
  if (task.start.has_state && outcome.status.ok()) {
    outcome.status = PassStateOn(compute, task.start, &outcome.state);
  }
  outcome.bytes = compute.job_bytes();
  if (outcome.status.ok()) outcome.status = compute.CheckBudget();
  task = {};
  outcome.launched = compute.EndJob();
  if (outcome.launched != nullptr) {
    FenceOutputs(&outcome);
  } else {
    ReadNorm(&outcome);
  }
  outcome.end_ns = MonotonicNow();
  return outcome;
}

}  // namespace weft
