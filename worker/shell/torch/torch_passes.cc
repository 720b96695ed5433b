// Implements TorchRank's forwards and backwards of micro-batches.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/torch/host_offload.h"
#include "worker/shell/torch/torch_rank.h"

namespace weft {
namespace {

// Returns true if the memory is aligned. Kernels may give other bits on memory with another alignment, so
// such memory is copied. On a GPU cuBLASLt chooses a product's kernel by the alignment of its operands, up to
// 256 bytes; there LibTorch's and the rank's own memory has 512. A tensor from a peer may be cut at 64.
bool IsAligned(const Tensor& tensor) {
  constexpr size_t kDeviceAlignment = 256;
  const size_t bytes = tensor.place == MemoryPlace::kHost ? SegmentAllocator::kAlignment : kDeviceAlignment;
  return reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0;
}

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
  if (layout.statistics_begin < layout.elements) std::sort(pieces.begin(), pieces.end(), before);
  return pieces;
}

}  // namespace

at::Tensor TorchRank::WrapAligned(const Tensor& tensor) const {
  const at::Tensor wrapped = Wrap(tensor, device_->torch_device());
  return IsAligned(tensor) ? wrapped : wrapped.clone();
}

std::vector<at::Tensor> TorchRank::WrapAll(const std::vector<Tensor>& tensors) const {
  std::vector<at::Tensor> wrapped;
  wrapped.reserve(tensors.size() + 1);
  for (const Tensor& tensor : tensors) wrapped.push_back(WrapAligned(tensor));
  return wrapped;
}

Pass* TorchRank::Stage::Find(const Job& job) {
  MutexLock lock(mutex_);
  const auto found = passes_.find({job.step, job.microbatch});
  return found == passes_.end() ? nullptr : found->second.get();
}

void TorchRank::Stage::Insert(const Job& job, Pass pass) {
  auto kept = std::make_unique<Pass>(std::move(pass));
  MutexLock lock(mutex_);
  passes_.emplace(std::pair(job.step, job.microbatch), std::move(kept));
}

void TorchRank::Stage::Erase(const Job& job) {
  std::unique_ptr<Pass> ended;  // after the lock: it may hold a graph
  MutexLock lock(mutex_);
  const auto found = passes_.find({job.step, job.microbatch});
  ended = std::move(found->second);
  passes_.erase(found);
}

std::shared_ptr<StageWeights> TorchRank::Stage::TakeSpare() {
  {
    MutexLock lock(mutex_);
    if (!spare_.empty()) {
      std::shared_ptr<StageWeights> unbound = std::move(spare_.back());
      spare_.pop_back();
      return unbound;
    }
  }
  return std::make_shared<StageWeights>(layout, device, precision);
}

void TorchRank::Stage::GiveSpare(std::shared_ptr<StageWeights> unbound) {
  MutexLock lock(mutex_);
  spare_.push_back(std::move(unbound));
}

// Checks a tensor from another stage: one tensor [samples, ..] of `sample` sizes.
absl::Status TorchRank::CheckBoundary(const char* what, const Stage& stage,
                                      const std::vector<int64_t>& sample, const Tensor& tensor) const {
  TensorShape expected;
  expected.dims = static_cast<uint8_t>(1 + sample.size());
  expected.size[0] = run_.microbatch_samples();
  if (run_.precision == Precision::kBFloat16) expected.type = DataType::kBFloat16;
  size_t bytes = ElementBytes(expected.type) * static_cast<size_t>(expected.size[0]);
  for (size_t i = 0; i < sample.size(); ++i) {
    expected.size[1 + i] = sample[i];
    bytes *= static_cast<size_t>(sample[i]);
  }
  if (tensor.shape == expected && tensor.bytes == bytes && tensor.data != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the %s of stage %d came with %d dimensions and %d bytes, expected are %d and %d", what,
                      stage.layout.stage, tensor.shape.dims, tensor.bytes, expected.dims, bytes));
}

absl::Status TorchRank::CheckInputs(const Stage& stage, const std::vector<Tensor>& inputs) const {
  const auto& expected = stage.layout.inputs;
  if (inputs.size() != expected.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("stage %d reads the outputs of %d stages, %d came",
                                                      stage.layout.stage, expected.size(), inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (absl::Status s = CheckBoundary("input", stage, expected[i], inputs[i]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TorchRank::AlignedWeights(const Stage& stage, Tensor fetched) {
  if (absl::Status s = CheckFlat("weights", fetched, stage.layout.elements); !s.ok()) return s;
  absl::StatusOr<Tensor> here = Here(std::move(fetched));
  if (!here.ok() || IsAligned(*here)) return here;
  absl::StatusOr<Tensor> copy = device_->NewFlat(stage.layout.elements, MemoryClass::kWeights);
  if (copy.ok()) device_->math().Copy(copy->data, here->data, here->bytes);
  return copy;
}

// Returns the weights for a job that came without fetched ones.
absl::StatusOr<std::shared_ptr<StageWeights>> TorchRank::HeldWeights(const Stage& stage, int version) const {
  std::shared_ptr<StageWeights> held = stage.holds_whole() ? stage.versions.At(version) : nullptr;
  if (held != nullptr) return held;
  return absl::FailedPreconditionError(absl::StrFormat(
      "the job came without weights, and this rank does not hold version %d of them", version));
}

// Sets the weights of a pass: those that came with the job, else the held ones at the version.
absl::Status TorchRank::ChooseWeights(Stage& stage, Tensor fetched, int version, Pass* pass) {
  if (fetched.empty() && stage.layout.elements == 0) {
    pass->weights = stage.TakeSpare();  // no parameters: nothing to hold or to fetch
    return absl::OkStatus();
  }
  if (fetched.empty()) {
    absl::StatusOr<std::shared_ptr<StageWeights>> held = HeldWeights(stage, version);
    if (!held.ok()) return held.status();
    pass->weights = *held;
    pass->use = StageWeights::Use(*std::move(held));
    pass->fetched = false;
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> aligned = AlignedWeights(stage, std::move(fetched));
  if (!aligned.ok()) return aligned.status();
  pass->weights = stage.TakeSpare();
  pass->weights->Bind(*std::move(aligned));
  pass->weights->Changed();
  pass->fetched = true;
  return absl::OkStatus();
}

at::Tensor TorchRank::WideRooms::Take(at::IntArrayRef sizes) {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      at::Tensor room = std::move(idle_.back());
      idle_.pop_back();
      return room;
    }
  }
  return at::empty(sizes, c10::kFloat);
}

void TorchRank::WideRooms::Give(at::Tensor room) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(room));
}

// Reads a piece into host memory.
absl::StatusOr<at::Tensor> TorchRank::ReadPiece(const DataPiece& piece) {
  const int64_t samples = run_.microbatch_samples();
  const auto make = [&](at::IntArrayRef sizes, c10::ScalarType type) {
    return device_->is_host() ? at::empty(sizes, type) : device_->NewHostTensor(sizes, type);
  };
  at::Tensor read;
  absl::Status status;
  if (piece.targets) {
    read = make({samples * data_->targets()}, c10::kLong);
    status = data_->ReadTargets(run_, piece.step, piece.microbatch, read.mutable_data_ptr<int64_t>());
  } else {
    const bool tokens = data_->input_type() == DataType::kInt64;
    const bool narrows = !tokens && run_.precision == Precision::kBFloat16;
    const std::array<int64_t, 2> sizes = {samples, data_->inputs()};
    const bool has_room = narrows && !device_->is_host();
    read = has_room ? wide_rooms_.Take(sizes) : make(sizes, tokens ? c10::kLong : c10::kFloat);
    status = data_->ReadInputs(run_, piece.step, piece.microbatch, read.mutable_data_ptr());
    if (status.ok() && narrows) {
      at::Tensor wide = std::exchange(read, make(sizes, c10::kBFloat16));
      read.copy_(wide);
      if (has_room) wide_rooms_.Give(std::move(wide));
    }
  }
  if (!status.ok()) return status;
  return read;
}

// Reads a piece and sends it to the device. Any thread.
absl::StatusOr<Tensor> TorchRank::SendPiece(const DataPiece& piece) {
  return Compute(
      [&] { return absl::StrFormat("data of micro-batch %d of step %d", piece.microbatch, piece.step); },
      [&]() -> absl::StatusOr<Tensor> {
        const absl::StatusOr<at::Tensor> read = ReadPiece(piece);
        return read.ok() ? device_->ToDevice(Unwrap(*read), MemoryClass::kActivations) : read.status();
      });
}

// Returns the piece on the device, in the order of the job's work.
absl::StatusOr<at::Tensor> TorchRank::Data(const DataPiece& piece) {
  if (device_->is_host()) return ReadPiece(piece);
  const absl::StatusOr<Tensor> sent = prefetch_->Take(piece);
  if (!sent.ok()) return sent.status();
  return Wrap(device_->Await(*sent), device_->torch_device());
}

// Appends the data, the last of the inputs, if the stage reads data.
absl::Status TorchRank::AppendData(const Stage& stage, const Job& job, std::vector<at::Tensor>* inputs) {
  if (!stage.layout.reads_data) return absl::OkStatus();
  absl::StatusOr<at::Tensor> data = Data({job.step, job.microbatch, false});
  if (!data.ok()) return data.status();
  inputs->push_back(*std::move(data));
  return absl::OkStatus();
}

// Returns the targets; undefined for all stages but the last.
absl::StatusOr<at::Tensor> TorchRank::Targets(const Stage& stage, const Job& job) {
  if (!last(stage)) return at::Tensor();
  return Data({job.step, job.microbatch, true});
}

absl::StatusOr<ForwardResult> TorchRank::Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                                 int version) {
  return Compute([&] { return Describe(job); },
                 [&] { return DoForward(job, std::move(inputs), std::move(weights), version, true); });
}

absl::StatusOr<ForwardResult> TorchRank::ForwardOnly(const Job& job, std::vector<Tensor> inputs,
                                                     Tensor weights, int version) {
  return Compute([&] { return Describe(job); },
                 [&] { return DoForward(job, std::move(inputs), std::move(weights), version, false); });
}

absl::StatusOr<ForwardResult> TorchRank::DoForward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                                   int version, bool leaves_pass) {
  absl::StatusOr<Stage*> found = StageOf(job.stage);
  if (!found.ok()) return found.status();
  Stage& stage = **found;
  if (job.kind != JobKind::kForward || stage.Find(job) != nullptr) {
    return absl::FailedPreconditionError("it is not a forward, or it ran before");
  }
  if (absl::Status s = CheckInputs(stage, inputs); !s.ok()) return s;
  Pass pass;
  if (absl::Status s = ChooseWeights(stage, std::move(weights), version, &pass); !s.ok()) return s;

  device_->BeginTally();
  const Charged charged(*device_, MemoryClass::kActivations, Tallied::kYes);
  absl::StatusOr<std::vector<Tensor>> here = AllHere(std::move(inputs));
  if (!here.ok()) return here.status();
  std::vector<at::Tensor> entries = WrapAll(*here);
  if (absl::Status s = AppendData(stage, job, &entries); !s.ok()) return s;
  here->clear();
  // Data that was sent to the device before the job is not in its tally.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> sent;
  if (prefetch_ != nullptr && stage.layout.reads_data)
    sent.emplace(entries.back().storage().getWeakStorageImpl());
  const bool leaves_graph = leaves_pass && stage.activations != ActivationPolicy::kRecompute;
  absl::StatusOr<PassOutput> output =
      leaves_graph ? RunPass(stage, job, entries, &pass) : RunOnce(stage, job, entries, &pass);
  if (!output.ok()) return output.status();
  ForwardResult result;
  if (output->loss.defined()) {
    if (device_->is_host()) {
      result.loss = static_cast<double>(*output->loss.const_data_ptr<float>());
      if (absl::Status s = CheckLoss(run_, *result.loss); !s.ok()) return s;
    } else {
      device_->ReportLoss(output->loss);
    }
    output->loss.reset();
  }
  if (pass.fetched) pass.weights->Unbind();
  if (pass.fetched && !pass.has_graph()) stage.GiveSpare(std::move(pass.weights));
  const bool captured = pass.captured != nullptr;
  const OffloadedTensors offloaded = pass.offloaded;
  if (leaves_pass) stage.Insert(job, std::move(pass));

  if (output->activation.defined()) result.activation = Unwrap(output->activation);
  entries.clear();
  result.left_bytes = offloaded.Staying([&] { return device_->tally(MemoryClass::kActivations); });
  if (sent.has_value()) {
    const auto stays = sent->lock();
    if (stays != nullptr && stays->data() != nullptr)
      result.left_bytes += static_cast<int64_t>(stays->nbytes());
  }
  if (captured) {
    result.left_bytes = stage.graphs.left_bytes();
  } else {
    stage.graphs.set_left_bytes(result.left_bytes);
  }
  return result;
}

MaskKey TorchRank::KeyOf(const Job& job) const {
  return {run_.train.seed, job.step, job.microbatch, /*training=*/true, &device_->math()};
}

// Runs the stage's forward, which leaves the graph for the backward in `pass`.
absl::StatusOr<PassOutput> TorchRank::RunPass(Stage& stage, const Job& job,
                                              const std::vector<at::Tensor>& inputs, Pass* pass) {
  absl::StatusOr<at::Tensor> targets = Targets(stage, job);
  if (!targets.ok()) return targets.status();
  const MaskKey key = KeyOf(job);
  // A backward that runs the forward again needs the saved tensors at once.
  if (stage.activations != ActivationPolicy::kOffload || job.kind != JobKind::kForward) {
    if (capturable_ && job.kind == JobKind::kForward && !pass->fetched) {
      const PassShape shape{layers_, stage.layout, loss_gradient_, split_backward_};
      pass->captured = stage.graphs.Take(shape, pass->weights, inputs, *targets);
      if (pass->captured != nullptr) return pass->captured->Forward(inputs, *targets, key);
    }
    return RunForward(layers_, stage.layout, inputs, *targets, key, pass);
  }
  HostOffload offload(*device_, pass->weights->storages(), &pass->offloaded);
  PassOutput output = RunForward(layers_, stage.layout, inputs, *targets, key, pass);
  // The input bytes that the graph needs have moved; the leaves of the inputs are the graph's ends and need
  // no bytes.
  for (const at::Tensor& input : inputs) offload.Strip(input);
  // Targets that were sent before the job, like data, are not in its tally.
  if (prefetch_ != nullptr && targets->defined()) offload.Strip(*targets);
  return output;
}

// Runs the stage's forward, which leaves its inputs.
absl::StatusOr<PassOutput> TorchRank::RunOnce(const Stage& stage, const Job& job,
                                              const std::vector<at::Tensor>& inputs, Pass* pass) {
  absl::StatusOr<at::Tensor> targets = Targets(stage, job);
  if (!targets.ok()) return targets.status();
  const auto data = inputs.end() - (stage.layout.reads_data ? 1 : 0);
  pass->inputs.assign(inputs.begin(), data);
  return RunWithoutGraph(layers_, stage.layout, inputs, *targets, KeyOf(job), *pass);
}

// Runs the forward of a pass again, with its graph. Masks and data depend on the job alone, so all bits are
// those of the first time.
absl::Status TorchRank::Recompute(Stage& stage, const Job& job, Tensor weights, int version, Pass* pass) {
  if (pass->weights == nullptr) {
    if (absl::Status s = ChooseWeights(stage, std::move(weights), version, pass); !s.ok()) return s;
  }
  const Charged charged(*device_, MemoryClass::kActivations);
  std::vector<at::Tensor> inputs = std::exchange(pass->inputs, {});
  if (absl::Status s = AppendData(stage, job, &inputs); !s.ok()) return s;
  return RunPass(stage, job, inputs, pass).status();
}

absl::Status TorchRank::AdoptPass(const Job& job, std::vector<Tensor> inputs) {
  return Compute([&] { return Describe(job); }, [&] { return DoAdoptPass(job, inputs); });
}

absl::Status TorchRank::DoAdoptPass(const Job& job, const std::vector<Tensor>& inputs) {
  absl::StatusOr<Stage*> found = StageOf(job.stage);
  if (!found.ok()) return found.status();
  Stage& stage = **found;
  if (stage.Find(job) != nullptr) {
    return absl::FailedPreconditionError("its forward ran on this rank, or it was adopted before");
  }
  if (absl::Status s = CheckInputs(stage, inputs); !s.ok()) return s;
  const Charged charged(*device_, MemoryClass::kActivations);
  const absl::StatusOr<std::vector<Tensor>> here = AllHere(inputs);
  if (!here.ok()) return here.status();
  Pass pass;
  pass.inputs = WrapAll(*here);
  stage.Insert(job, std::move(pass));
  return absl::OkStatus();
}

absl::StatusOr<BackwardResult> TorchRank::Backward(const Job& job, std::vector<Tensor> output_gradients,
                                                   Tensor weights, int version, bool hand_out) {
  return Compute(
      [&] { return Describe(job); },
      [&] { return DoBackward(job, std::move(output_gradients), std::move(weights), version, hand_out); });
}

// Returns the gradient that the pass starts from: the sum of the consumers' gradients, or the loss's own. It
// is summed from the last consumer to the first, as LibTorch's engine does it in one graph over all stages.
absl::StatusOr<at::Tensor> TorchRank::OutputGradient(const Stage& stage, const Pass& pass, PassHalf half,
                                                     const std::vector<Tensor>& given) {
  if (half == PassHalf::kWeight) {
    if (!pass.output_gradient.defined())
      return absl::FailedPreconditionError("its backward_input did not run");
    return pass.output_gradient;
  }
  if (pass.output_gradient.defined()) return absl::FailedPreconditionError("its backward_input ran before");
  if (last(stage)) return loss_gradient_;
  if (given.empty() || static_cast<int>(given.size()) != stage.layout.consumers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the output of stage %d is read by %d stages, %d gradients "
                        "came",
                        stage.layout.stage, stage.layout.consumers, given.size()));
  }
  at::Tensor sum;
  for (auto gradient = given.rbegin(); gradient != given.rend(); ++gradient) {
    absl::Status s = CheckBoundary("output gradient", stage, stage.layout.output, *gradient);
    if (!s.ok()) return s;
    const absl::StatusOr<Tensor> here = Here(*gradient);
    if (!here.ok()) return here.status();
    sum = sum.defined() ? sum + WrapAligned(*here) : WrapAligned(*here);
  }
  return sum;
}

// Brings a fetched copy of the weights back under a pass that ran on one.
absl::Status TorchRank::Rebind(const Stage& stage, Tensor fetched, int version, Pass* pass) {
  if (!pass->fetched) return absl::OkStatus();
  if (fetched.empty()) {
    absl::StatusOr<std::shared_ptr<StageWeights>> held = HeldWeights(stage, version);
    if (!held.ok()) return held.status();
    fetched = (*held)->memory();
    fetched.owner = StageWeights::Use(*std::move(held));
  }
  absl::StatusOr<Tensor> aligned = AlignedWeights(stage, std::move(fetched));
  if (!aligned.ok()) return aligned.status();
  pass->weights->Bind(*std::move(aligned));
  pass->weights->Changed();
  return absl::OkStatus();
}

absl::StatusOr<BackwardResult> TorchRank::DoBackward(const Job& job, std::vector<Tensor> output_gradients,
                                                     Tensor weights, int version, bool hand_out) {
  absl::StatusOr<Stage*> found = StageOf(job.stage);
  if (!found.ok()) return found.status();
  Stage& stage = **found;
  const PassHalf half = job.kind == JobKind::kBackwardInput    ? PassHalf::kInput
                        : job.kind == JobKind::kBackwardWeight ? PassHalf::kWeight
                                                               : PassHalf::kBoth;
  Pass* const found_pass = stage.Find(job);
  if (found_pass == nullptr) {
    return absl::FailedPreconditionError("there is no forward that waits for it on this rank");
  }
  Pass& pass = *found_pass;
  const Charged charged(*device_, MemoryClass::kBuffers);
  absl::StatusOr<at::Tensor> start = OutputGradient(stage, pass, half, output_gradients);
  if (!start.ok()) return start.status();
  absl::Status ready = pass.has_graph() ? Rebind(stage, std::move(weights), version, &pass)
                                        : Recompute(stage, job, std::move(weights), version, &pass);
  if (!ready.ok()) return ready;

  pass.offloaded.BeginAll();
  const PassGradients gradients =
      pass.captured != nullptr ? pass.captured->Backward(*start, half) : RunBackward(pass, *start, half);
  pass.offloaded.ForgetRest();
  if (pass.fetched) pass.weights->Unbind();
  BackwardResult result;
  for (const at::Tensor& gradient : gradients.inputs) result.input_gradients.push_back(Unwrap(gradient));
  if (half == PassHalf::kInput) {
    pass.output_gradient = *std::move(start);
    return result;
  }
  if (pass.fetched) stage.GiveSpare(std::move(pass.weights));
  const std::shared_ptr<CapturedPass> captured = std::move(pass.captured);
  stage.Erase(job);

  absl::Status kept = KeepGradient(stage, job, gradients.parameters, hand_out, &result);
  if (!kept.ok()) return kept;
  if (captured != nullptr) {
    stage.graphs.Return(captured);
  } else {
    stage.graphs.CountEager();
  }
  return result;
}

// Adds a micro-batch's gradient to the stage's sum, or hands it out.
absl::Status TorchRank::KeepGradient(Stage& stage, const Job& job, const std::vector<at::Tensor>& parameters,
                                     bool hand_out, BackwardResult* result) {
  const std::vector<FlatPiece> pieces = PiecesOf(stage.layout, parameters);
  if (!hand_out) {
    if (stage.sums_whole()) return stage.sums.Add(job.step, job.microbatch, pieces);
    return absl::FailedPreconditionError(
        "this rank keeps no gradient sum of the stage: hand the gradient out");
  }
  absl::StatusOr<Tensor> flat = device_->NewFlat(stage.layout.elements, MemoryClass::kGradients);
  if (!flat.ok()) return flat.status();
  device_->math().WritePieces(pieces, static_cast<float*>(flat->data), stage.layout.elements);
  result->gradient = *std::move(flat);
  return absl::OkStatus();
}

}  // namespace weft
