#include "worker/shell/loop/hash_notes.h"

#include <utility>

#include "worker/shell/compute/value_hash.h"
#include "worker/shell/loop/job_runner.h"

namespace weft {
namespace {

// Returns the kind of value that an input is; nothing for one that is not hashed.
std::optional<HashedValue> HashedInput(TensorKind kind) {
  switch (kind) {
    case TensorKind::kActivation:
      return HashedValue::kActivation;
    case TensorKind::kInputGradient:
      return HashedValue::kInputGradient;
    case TensorKind::kGradient:
      return HashedValue::kGradient;
    case TensorKind::kGradientSum:
      return HashedValue::kGradientSum;
    case TensorKind::kWeights:
      return HashedValue::kWeights;
    case TensorKind::kOrder:
    case TensorKind::kNorm:
    case TensorKind::kState:
    case TensorKind::kCopy:
      break;
  }
  return std::nullopt;
}

std::optional<ValueHash> ArrivedAs(const Graph& graph, const TensorKey& key) {
  const std::optional<HashedValue> value = HashedInput(key.kind);
  if (!value.has_value()) return std::nullopt;
  ValueHash hash{*value, /*received=*/true};
  switch (*value) {
    case HashedValue::kActivation:
      hash.source = key.stage;
      break;
    case HashedValue::kInputGradient:
      hash.source = key.stage;
      hash.part = key.part;
      hash.parts = static_cast<int32_t>(graph.inputs(key.stage).size());
      break;
    case HashedValue::kWeights:
      hash.source = key.version;
      hash.part = key.part;
      break;
    case HashedValue::kGradientSum:
      // A sum on its way from micro-batch to micro-batch.
      if (key.microbatch >= 0) hash.value = HashedValue::kRunningSum;
      hash.source = key.microbatch;
      hash.part = key.part;
      break;
    default:
      hash.source = key.microbatch;
      hash.part = key.part;
      break;
  }
  return hash;
}

bool IsFlat(HashedValue value) {
  return value != HashedValue::kActivation && value != HashedValue::kInputGradient;
}

void Note(ValueHash value, std::optional<uint64_t> hash, JobOutcome* outcome) {
  if (!hash.has_value()) return;
  value.hash = *hash;
  outcome->hashes.push_back(value);
}

// Notes a flat buffer of the stage: the whole, or slice `value.part` of `parts`, as its size says.
void NoteFlat(ValueHash value, const Tensor& flat, int64_t elements, int parts, JobOutcome* outcome) {
  value.parts = flat.bytes == static_cast<size_t>(elements) * sizeof(float) ? 1 : parts;
  if (value.parts == 1) value.part = 0;
  Note(value, HashSlice(flat, elements, value.part, value.parts), outcome);
}

}  // namespace

HashTask HashTaskFor(const Graph& graph, const StartEffect& start, int first_version,
                     const std::function<bool(Rank)>& is_here) {
  HashTask task;
  task.first_version = first_version;
  for (const bool gradients : {false, true}) {
    const std::vector<TensorKey>& keys = gradients ? start.gradients : start.inputs;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (is_here(keys[i].producer)) continue;
      if (const auto hash = ArrivedAs(graph, keys[i])) task.arrived.push_back({gradients, i, *hash});
    }
  }
  return task;
}

void NoteArrived(const JobTask& task, const RankCompute& compute, JobOutcome* outcome) {
  for (const HashTask::Arrived& arrived : task.hashes->arrived) {
    const Tensor& tensor = (arrived.is_gradient ? task.gradients : task.inputs)[arrived.index];
    if (IsFlat(arrived.hash.value)) {
      NoteFlat(arrived.hash, tensor, compute.stage_elements(task.start.job.stage), task.parts, outcome);
    } else {
      Note(arrived.hash, HashTensor(tensor), outcome);
    }
  }
}

void NoteInitialWeights(const JobTask& task, RankCompute& compute, const Tensor& fetched,
                        JobOutcome* outcome) {
  if (task.start.version > task.hashes->first_version) return;
  ValueHash value{HashedValue::kInitialWeights};
  value.source = task.start.version;
  if (!fetched.empty()) return Note(value, HashTensor(fetched), outcome);
  const absl::StatusOr<Tensor> held = compute.Weights(task.start.job.stage, task.start.version);
  if (held.ok()) Note(value, HashTensor(*held), outcome);
}

void NoteGradient(const JobTask& task, const BackwardResult& result, bool in_slices, JobOutcome* outcome) {
  const Tensor& gradient = result.gradient;
  if (gradient.empty()) return Note({HashedValue::kGradient}, result.gradient_hash, outcome);
  const auto elements = static_cast<int64_t>(gradient.bytes / sizeof(float));
  const int parts = in_slices ? task.parts : 1;
  for (int part = 0; part < parts; ++part) {
    Note({HashedValue::kGradient, false, 0, part, parts},
         HashSlice(Slice(gradient, part, parts), elements, part, parts), outcome);
  }
}

void NoteSum(const JobTask& task, const RankCompute& compute, const Tensor& sum, JobOutcome* outcome) {
  ValueHash value{HashedValue::kGradientSum};
  value.part = task.start.job.member;
  NoteFlat(value, sum, compute.stage_elements(task.start.job.stage), task.parts, outcome);
}

void NoteResults(const JobTask& task, RankCompute& compute, JobOutcome* outcome) {
  const Job& job = task.start.job;
  if (job.kind == JobKind::kForward)
    Note({HashedValue::kActivation}, HashTensor(outcome->activation), outcome);
  const int inputs = static_cast<int>(outcome->input_gradients.size());
  for (int i = 0; i < inputs; ++i) {
    Note({HashedValue::kInputGradient, false, 0, i, inputs}, HashTensor(outcome->input_gradients[i]),
         outcome);
  }
  if (outcome->gradient_sum.empty() && job.kind != JobKind::kUpdate) return;
  if (job.kind == JobKind::kReduce) return NoteSum(task, compute, outcome->gradient_sum, outcome);
  if (HasMicrobatch(job.kind))
    return Note({HashedValue::kRunningSum}, HashTensor(outcome->gradient_sum), outcome);
  if (!task.start.last()) return;
  const int version = task.start.version + 1;
  const absl::StatusOr<Tensor> made = compute.Weights(job.stage, version);
  if (!made.ok()) return;
  // Weights that are installed late were made with the version of an earlier step: they count as received.
  ValueHash value{HashedValue::kWeights, /*received=*/version <= job.step};
  if (value.received) value.source = version;
  value.part = job.member;
  NoteFlat(value, *made, compute.stage_elements(job.stage), task.parts, outcome);
}

}  // namespace weft
