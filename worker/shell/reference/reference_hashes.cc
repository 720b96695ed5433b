#include "worker/shell/reference/reference_hashes.h"

#include <optional>

#include "worker/shell/compute/value_hash.h"

namespace weft {
namespace {

uint64_t HashOf(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return HashBytes(values.const_data_ptr(), values.nbytes());
}

ValueHash Whole(HashedValue value, const at::Tensor& tensor) {
  return {value, false, 0, 0, 1, HashOf(tensor)};
}

JobHashes Done(const Job& job, std::vector<ValueHash> hashes) {
  return {job, -1, -1, std::nullopt, std::nullopt, std::move(hashes)};
}

}  // namespace

ReferenceHashes::ReferenceHashes(std::vector<std::vector<int>> inputs, int first_step, Sink sink)
    : inputs_(std::move(inputs)),
      first_step_(first_step),
      sink_(std::move(sink)),
      consumers_(inputs_.size()),
      stages_(inputs_.size()) {
  for (const std::vector<int>& of_stage : inputs_) {
    for (const int input : of_stage) ++consumers_[input];
  }
}

void ReferenceHashes::NoteWeights(int stage, int version, const at::Tensor& flat) {
  if (!on() || version > first_step_) return;
  ValueHash hash = Whole(HashedValue::kInitialWeights, flat);
  hash.source = version;
  stages_[stage].forward.push_back(hash);
}

void ReferenceHashes::NoteOutput(int stage, const at::Tensor& activation) {
  if (!on() || stage + 1 == stages()) return;  // the last one's output is the loss
  stages_[stage].forward.push_back(Whole(HashedValue::kActivation, activation));
  if (!activation.requires_grad()) return;
  activation.retain_grad();
  stages_[stage].output = activation;
}

void ReferenceHashes::NoteGradient(int stage, const at::Tensor& flat, const at::Tensor& sum) {
  stages_[stage].backward.push_back(Whole(HashedValue::kGradient, flat));
  stages_[stage].backward.push_back(Whole(HashedValue::kRunningSum, sum));
}

void ReferenceHashes::NoteInputGradients(int stage) {
  const int count = static_cast<int>(inputs_[stage].size());
  for (int i = 0; i < count; ++i) {
    const int input = inputs_[stage][i];
    const at::Tensor& output = stages_[input].output;
    if (consumers_[input] != 1 || !output.defined() || !output.grad().defined()) continue;
    stages_[stage].backward.push_back(
        {HashedValue::kInputGradient, false, 0, i, count, HashOf(output.grad())});
  }
}

void ReferenceHashes::EndMicrobatch(int step, int microbatch, double loss) {
  if (!on()) return;
  for (int stage = 0; stage < stages(); ++stage) {
    NoteInputGradients(stage);
    JobHashes forward = Done(Job::Compute(step, stage, microbatch, JobKind::kForward),
                             std::exchange(stages_[stage].forward, {}));
    if (stage + 1 == stages()) forward.loss = loss;
    sink_(forward);
  }
  for (int stage = stages() - 1; stage >= 0; --stage) {
    sink_(Done(Job::Compute(step, stage, microbatch, JobKind::kBackward),
               std::exchange(stages_[stage].backward, {})));
  }
  for (Stage& stage : stages_) stage.output.reset();
}

void ReferenceHashes::NoteNorm(int step, double norm) {
  if (!on()) return;
  JobHashes job = Done(Job::Reduce(step, 0, 0), {});
  job.gradient_norm = norm;
  sink_(job);
}

void ReferenceHashes::NoteUpdate(int step, int stage, const at::Tensor& sum, const at::Tensor& weights) {
  sink_(Done(Job::Update(step, stage, 0),
             {Whole(HashedValue::kGradientSum, sum), Whole(HashedValue::kWeights, weights)}));
}

}  // namespace weft
