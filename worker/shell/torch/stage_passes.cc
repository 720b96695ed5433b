#include "worker/shell/torch/stage_passes.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "worker/shell/compute/non_finite.h"
#include "worker/shell/compute/stage_boundary.h"
#include "worker/shell/compute/value_hash.h"
#include "worker/shell/torch/host_offload.h"
#include "worker/shell/torch/job_inputs.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {
namespace {

// Data that were sent to the device before the job that takes them, and may stay after it. Their bytes are
// not in the job's tally.
class SentData {
 public:
  explicit SentData(const at::Tensor& data) : storage_(data.storage().getWeakStorageImpl()) {}

  // Returns the bytes that still stay.
  int64_t bytes() const {
    const auto stays = storage_.lock();
    return stays != nullptr && stays->data() != nullptr ? static_cast<int64_t>(stays->nbytes()) : 0;
  }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
};

// Returns the gradients of a stage's parameters as pieces of its flat buffer, ascending.
std::vector<FlatPiece> PiecesOf(const StageLayout& layout, const std::vector<at::Tensor>& gradients) {
  std::vector<FlatPiece> pieces;
  pieces.reserve(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& g = gradients[i];
    const DataType type = g.scalar_type() == c10::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32;
    pieces.push_back({layout.slots[i].offset, g.numel(), g.const_data_ptr(), type});
  }
  const auto before = [](const FlatPiece& a, const FlatPiece& b) { return a.offset < b.offset; };
  std::sort(pieces.begin(), pieces.end(), before);
  return pieces;
}

PassHalf HalfOf(JobKind kind) {
  return kind == JobKind::kBackwardInput    ? PassHalf::kInput
         : kind == JobKind::kBackwardWeight ? PassHalf::kWeight
                                            : PassHalf::kBoth;
}

}  // namespace

StagePasses::StagePasses(const PassModel& model, HeldStage& held, DataFeed& data, RankDevice& device)
    : model_(model),
      layout_(held.layout()),
      activations_(ActivationsOf(model.run, layout_.stage)),
      held_(held),
      data_(data),
      device_(device),
      weights_(held, device),
      graphs_(device) {}

// Appends the data, the last of the inputs, if the stage reads data.
absl::Status StagePasses::AppendData(const Job& job, std::vector<at::Tensor>* inputs) {
  if (!layout_.reads_data) return absl::OkStatus();
  absl::StatusOr<at::Tensor> data = data_.Take({job.step, job.microbatch, false});
  if (!data.ok()) return data.status();
  inputs->push_back(*std::move(data));
  return absl::OkStatus();
}

// Returns the targets; undefined for all stages but the last, and for a model with a loss of its own.
absl::StatusOr<at::Tensor> StagePasses::Targets(const Job& job) {
  if (!is_last() || !data_.has_targets()) return at::Tensor();
  return data_.Take({job.step, job.microbatch, true});
}

absl::StatusOr<MaskKey> StagePasses::KeyOf(const Job& job) const {
  MaskKey key{model_.run.train.seed, job.step, job.microbatch, /*training=*/true, &device_.math()};
  key.generator = &device_.generator_lock();
  if (!is_last()) return key;
  const Charged charged(device_, MemoryClass::kBuffers);
  const absl::StatusOr<float> divisor = model_.counts->DivisorOf(job.step);
  if (!divisor.ok()) return divisor.status();
  key.loss_divisor = *divisor;
  return key;
}

absl::StatusOr<ForwardResult> StagePasses::Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                                   int version, bool leaves_pass) {
  if (job.kind != JobKind::kForward || passes_.Find(job) != nullptr) {
    return absl::FailedPreconditionError("it is not a forward, or it ran before");
  }
  if (absl::Status s = CheckInputs(model_.run, layout_, inputs); !s.ok()) return s;
  Pass pass;
  if (absl::Status s = weights_.Choose(std::move(weights), version, &pass); !s.ok()) return s;

  device_.BeginTally();
  const Charged charged(device_, device_.forward_class(), Tallied::kYes);
  absl::StatusOr<std::vector<Tensor>> here = AllOnDevice(device_, std::move(inputs));
  if (!here.ok()) return here.status();
  std::vector<at::Tensor> entries = WrapAllAligned(device_, *here);
  if (absl::Status s = AppendData(job, &entries); !s.ok()) return s;
  here->clear();
  std::optional<SentData> sent;
  if (data_.sends_ahead() && layout_.reads_data) sent.emplace(entries.back());
  const bool leaves_graph = leaves_pass && activations_ != ActivationPolicy::kRecompute;
  absl::StatusOr<PassOutput> output =
      leaves_graph ? RunPass(job, entries, &pass) : RunOnce(job, entries, &pass);
  if (!output.ok()) return output.status();
  ForwardResult result;
  if (absl::Status s = TakeLoss(&*output, &result); !s.ok()) return s;
  PassWeights::Unbind(&pass);
  if (!pass.has_graph()) weights_.GiveBack(&pass);
  const bool captured = pass.captured != nullptr;
  const OffloadedTensors offloaded = pass.offloaded;
  if (leaves_pass) passes_.Insert(job, std::move(pass));

  if (output->activation.defined()) result.activation = Unwrap(output->activation);
  entries.clear();
  device_.ChargeTally(MemoryClass::kActivations);
  if (captured) {
    result.activation_bytes = graphs_.activation_bytes();
    return result;
  }
  result.activation_bytes = offloaded.Staying([&] { return device_.tally(MemoryClass::kActivations); });
  if (sent.has_value()) result.activation_bytes += sent->bytes();
  graphs_.set_activation_bytes(result.activation_bytes);
  return result;
}

// Takes the loss out of the output of the last stage, or reports it to the device.
absl::Status StagePasses::TakeLoss(PassOutput* output, ForwardResult* result) {
  if (!output->loss.defined()) return absl::OkStatus();
  if (device_.is_host()) {
    result->loss = static_cast<double>(*output->loss.const_data_ptr<float>());
    if (absl::Status s = CheckLoss(model_.run, *result->loss); !s.ok()) return s;
  } else {
    device_.ReportLoss(output->loss);
  }
  output->loss.reset();
  return absl::OkStatus();
}

// Runs the stage's forward, which leaves the graph for the backward in `pass`.
absl::StatusOr<PassOutput> StagePasses::RunPass(const Job& job, const std::vector<at::Tensor>& inputs,
                                                Pass* pass) {
  absl::StatusOr<at::Tensor> targets = Targets(job);
  if (!targets.ok()) return targets.status();
  const absl::StatusOr<MaskKey> key = KeyOf(job);
  if (!key.ok()) return key.status();
  // A backward that runs the forward again needs the saved tensors at once.
  if (activations_ == ActivationPolicy::kOffload && job.kind == JobKind::kForward)
    return RunOffloaded(inputs, *targets, *key, pass);
  if (model_.capturable && job.kind == JobKind::kForward && !pass->fetched) {
    const PassShape shape{model_.layers, layout_, model_.loss_gradient, model_.split_backward};
    pass->captured = graphs_.Take(shape, pass->weights, inputs, *targets);
    if (pass->captured != nullptr) return pass->captured->Forward(inputs, *targets, *key);
  }
  return RunForward(model_.layers, layout_, inputs, *targets, *key, pass);
}

// Runs it while the tensors that the graph saves go to the host.
PassOutput StagePasses::RunOffloaded(const std::vector<at::Tensor>& inputs, const at::Tensor& targets,
                                     const MaskKey& key, Pass* pass) {
  HostOffload offload(device_, pass->weights->storages(), &pass->offloaded);
  PassOutput output = RunForward(model_.layers, layout_, inputs, targets, key, pass);
  // The input bytes that the graph needs have moved; the leaves of the inputs are the graph's ends and need
  // no bytes.
  for (const at::Tensor& input : inputs) offload.Strip(input);
  // Targets that were sent before the job, like data, are not in its tally.
  if (data_.sends_ahead() && targets.defined()) offload.Strip(targets);
  return output;
}

// Runs the stage's forward, which leaves its inputs.
absl::StatusOr<PassOutput> StagePasses::RunOnce(const Job& job, const std::vector<at::Tensor>& inputs,
                                                Pass* pass) {
  absl::StatusOr<at::Tensor> targets = Targets(job);
  if (!targets.ok()) return targets.status();
  const absl::StatusOr<MaskKey> key = KeyOf(job);
  if (!key.ok()) return key.status();
  const auto data = inputs.end() - (layout_.reads_data ? 1 : 0);
  pass->inputs.assign(inputs.begin(), data);
  return RunWithoutGraph(model_.layers, layout_, inputs, *targets, *key, *pass);
}

// Runs the forward of a pass again, with its graph. Masks and data depend on the job alone, so all bits are
// those of the first time.
absl::Status StagePasses::Recompute(const Job& job, Tensor weights, int version, Pass* pass) {
  if (pass->weights == nullptr) {
    if (absl::Status s = weights_.Choose(std::move(weights), version, pass); !s.ok()) return s;
  }
  const Charged charged(device_, device_.forward_class());
  std::vector<at::Tensor> inputs = std::exchange(pass->inputs, {});
  if (absl::Status s = AppendData(job, &inputs); !s.ok()) return s;
  return RunPass(job, inputs, pass).status();
}

absl::Status StagePasses::TakePass(const Job& job, const std::vector<Tensor>& inputs) {
  if (passes_.Find(job) != nullptr) {
    return absl::FailedPreconditionError("its forward ran on this rank, or its inputs were taken before");
  }
  if (absl::Status s = CheckInputs(model_.run, layout_, inputs); !s.ok()) return s;
  const Charged charged(device_, device_.forward_class());
  const absl::StatusOr<std::vector<Tensor>> here = AllOnDevice(device_, inputs);
  if (!here.ok()) return here.status();
  Pass pass;
  pass.inputs = WrapAllAligned(device_, *here);
  passes_.Insert(job, std::move(pass));
  return absl::OkStatus();
}

// Returns the gradient that the pass starts from: the sum of the consumers' gradients, or the loss's own. It
// is summed from the last consumer to the first, as LibTorch's engine does it in one graph over all stages.
absl::StatusOr<at::Tensor> StagePasses::OutputGradient(const Pass& pass, PassHalf half,
                                                       const std::vector<Tensor>& given) {
  if (half == PassHalf::kWeight) {
    if (!pass.output_gradient.defined())
      return absl::FailedPreconditionError("its backward_input did not run");
    return pass.output_gradient;
  }
  if (pass.output_gradient.defined()) return absl::FailedPreconditionError("its backward_input ran before");
  if (is_last()) return model_.loss_gradient;
  if (absl::Status s = CheckOutputGradients(model_.run, layout_, given); !s.ok()) return s;
  at::Tensor sum;
  for (auto gradient = given.rbegin(); gradient != given.rend(); ++gradient) {
    const absl::StatusOr<Tensor> here = OnDevice(device_, *gradient);
    if (!here.ok()) return here.status();
    sum = sum.defined() ? sum + WrapAligned(device_, *here) : WrapAligned(device_, *here);
  }
  return sum;
}

absl::StatusOr<BackwardResult> StagePasses::Backward(const Job& job,
                                                     const std::vector<Tensor>& output_gradients,
                                                     Tensor weights, int version, bool hand_out) {
  const PassHalf half = HalfOf(job.kind);
  Pass* const found = passes_.Find(job);
  if (found == nullptr) {
    return absl::FailedPreconditionError("there is no forward that waits for it on this rank");
  }
  Pass& pass = *found;
  const Charged charged(device_, MemoryClass::kBuffers);
  absl::StatusOr<at::Tensor> start = OutputGradient(pass, half, output_gradients);
  if (!start.ok()) return start.status();
  absl::Status ready = pass.has_graph() ? weights_.Rebind(std::move(weights), version, &pass)
                                        : Recompute(job, std::move(weights), version, &pass);
  if (!ready.ok()) return ready;

  pass.offloaded.BeginAll();
  const PassGradients gradients =
      pass.captured != nullptr ? pass.captured->Backward(*start, half) : RunBackward(pass, *start, half);
  pass.offloaded.ForgetRest();
  PassWeights::Unbind(&pass);
  BackwardResult result;
  for (const at::Tensor& gradient : gradients.inputs) result.input_gradients.push_back(Unwrap(gradient));
  if (half == PassHalf::kInput) {
    pass.output_gradient = *std::move(start);
    return result;
  }
  weights_.GiveBack(&pass);
  const std::shared_ptr<CapturedPass> captured = std::move(pass.captured);
  passes_.Erase(job);

  absl::Status kept = KeepGradient(job, gradients.parameters, hand_out, &result);
  if (!kept.ok()) return kept;
  if (captured != nullptr) {
    graphs_.Return(captured);
  } else {
    graphs_.CountEager();
  }
  return result;
}

// Adds a micro-batch's gradient to the stage's sum, or hands it out.
absl::Status StagePasses::KeepGradient(const Job& job, const std::vector<at::Tensor>& parameters,
                                       bool hand_out, BackwardResult* result) {
  const std::vector<FlatPiece> pieces = PiecesOf(layout_, parameters);
  if (device_.is_host()) {
    if (absl::Status s = CheckExamined(model_.run, layout_, job.step, pieces); !s.ok()) return s;
  }
  if (!hand_out) {
    if (model_.run.record_hashes && device_.is_host())
      result->gradient_hash = HashPieces(pieces, layout_.elements);
    if (held_.sums_whole()) return held_.sums().Add(job.step, job.microbatch, pieces);
    return absl::FailedPreconditionError(
        "this rank keeps no gradient sum of the stage: hand the gradient out");
  }
  absl::StatusOr<Tensor> flat = device_.NewFlat(layout_.elements, MemoryClass::kGradients);
  if (!flat.ok()) return flat.status();
  device_.math().WritePieces(pieces, static_cast<float*>(flat->data), layout_.elements);
  result->gradient = *std::move(flat);
  return absl::OkStatus();
}

}  // namespace weft
