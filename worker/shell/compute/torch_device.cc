// CpuDevice: RankCompute through LibTorch, one thread a kernel.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/data.h"
#include "worker/shell/compute/gradient_sum.h"
#include "worker/shell/compute/memory_scope.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/compute/torch_layers.h"
#include "worker/shell/compute/torch_stage.h"

namespace weft {
namespace {

// Adds what was being done to a failure.
absl::Status While(absl::string_view what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Runs `f`, which returns a Status or StatusOr, turns LibTorch's exceptions into a Status, and begins a
// failure's message with `what()`.
template <typename What, typename F>
auto Guarded(What what, F f) -> decltype(f()) {
  try {
    PrepareThread();
    decltype(f()) result = f();
    if (!result.ok()) return While(what(), StatusOf(result));
    return result;
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(what(), ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat(what(), ": LibTorch: ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what(), ": LibTorch: ", e.what()));
  }
}

struct Stage {
  Stage(const RunSpec& run, int index, SegmentAllocator& memory)
      : layout(LayOutStage(run, index)),
        optimizer(run.train.optimizer),
        sums(memory, layout.elements, run.train.microbatches) {}

  const StageLayout layout;
  // The held weights at their current version, and how many updates made it. While a pass or a peer still
  // uses them, an update writes the next version elsewhere.
  std::shared_ptr<StageWeights> weights;
  int64_t version = 0;
  Optimizer optimizer;
  std::vector<Tensor> optimizer_state;

  absl::flat_hash_map<std::pair<int, int>, Pass> passes;  // by step and micro-batch
  StageSums sums;
  std::vector<std::shared_ptr<StageWeights>> spare;  // unbound, for the next fetched copies
};

class CpuRank final : public RankCompute {
 public:
  CpuRank(const RunSpec& run, std::unique_ptr<Dataset> data, MemorySource& memory)
      : run_(run),
        data_(std::move(data)),
        layers_(BuildLayers(run.model)),
        memory_(SegmentAllocator::Create(memory)),
        loss_gradient_(at::full({}, 1.0f / static_cast<float>(run.train.microbatches), c10::kFloat)) {}

  absl::Status AddStage(int stage, bool holds_weights) override;
  int64_t stage_elements(int stage) const override { return stages_.at(stage)->layout.elements; }
  absl::StatusOr<ForwardResult> Forward(const Job& job, Tensor input, Tensor weights) override;
  absl::StatusOr<BackwardResult> Backward(const Job& job, Tensor output_gradient, Tensor weights,
                                          bool hand_out) override;
  absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) override;
  absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) override;
  absl::Status Update(const Job& job, const std::vector<Tensor>& sums) override;
  absl::StatusOr<Tensor> Weights(int stage) override;
  absl::Status Save(int stage, const std::string& folder) override;
  BytesByClass live_bytes() const override { return memory_->live_bytes(); }
  BytesByClass peak_bytes() const override { return memory_->peak_bytes(); }

 private:
  bool last(const Stage& stage) const { return stage.layout.stage + 1 == run_.stages(); }
  absl::StatusOr<Stage*> StageOf(int stage);
  absl::StatusOr<Stage*> HeldStage(int stage);
  absl::StatusOr<Tensor> NewZeros(int64_t elements, MemoryClass memory_class);
  absl::Status DoAddStage(int stage, bool holds_weights);
  absl::Status CheckActivation(const char* what, const Stage& stage, const Tensor& tensor) const;
  absl::StatusOr<Tensor> AlignedWeights(const Stage& stage, Tensor fetched);
  absl::Status ChooseWeights(Stage& stage, Tensor fetched, Pass* pass);
  absl::StatusOr<at::Tensor> Inputs(const Job& job, const Tensor& input);
  absl::StatusOr<at::Tensor> Targets(const Job& job);
  absl::StatusOr<ForwardResult> DoForward(const Job& job, Tensor input, Tensor weights);
  absl::StatusOr<BackwardResult> DoBackward(const Job& job, Tensor output_gradient, Tensor weights,
                                            bool hand_out);
  absl::StatusOr<at::Tensor> OutputGradient(const Stage& stage, const Pass& pass, PassHalf half,
                                            const Tensor& given);
  absl::Status Rebind(const Stage& stage, Tensor fetched, Pass* pass);
  absl::Status ApplyUpdate(Stage& stage, const std::vector<Tensor>& parts);

  const RunSpec run_;
  const std::unique_ptr<Dataset> data_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  const std::shared_ptr<SegmentAllocator> memory_;
  const at::Tensor loss_gradient_;  // of the step's loss, by one micro-batch's
  std::map<int, std::unique_ptr<Stage>> stages_;
};

absl::StatusOr<Stage*> CpuRank::StageOf(int stage) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) {
    return absl::FailedPreconditionError(absl::StrFormat("stage %d is not on this rank", stage));
  }
  return found->second.get();
}

absl::StatusOr<Stage*> CpuRank::HeldStage(int stage) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (found.ok() && (*found)->weights == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this rank does not hold the weights of stage %d", stage));
  }
  return found;
}

absl::StatusOr<Tensor> CpuRank::NewZeros(int64_t elements, MemoryClass memory_class) {
  absl::StatusOr<Tensor> flat = NewFlat(*memory_, elements, memory_class);
  if (flat.ok()) std::memset(flat->data, 0, flat->bytes);
  return flat;
}

absl::Status CpuRank::AddStage(int stage, bool holds_weights) {
  return Guarded([&] { return absl::StrCat("building stage ", stage); },
                 [&] { return DoAddStage(stage, holds_weights); });
}

absl::Status CpuRank::DoAddStage(int stage, bool holds_weights) {
  if (stage < 0 || stage >= run_.stages() || stages_.count(stage) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the run has stages 0..%d, and each is added once", run_.stages() - 1));
  }
  MemoryScope scope(memory_.get(), MemoryClass::kWeights);
  auto made = std::make_unique<Stage>(run_, stage, *memory_);
  if (holds_weights) {
    absl::StatusOr<Tensor> flat = NewZeros(made->layout.elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    made->weights = std::make_shared<StageWeights>(made->layout);
    made->weights->Bind(*std::move(flat));
    for (size_t i = 0; i < made->layout.slots.size(); ++i) {
      const ParameterSlot& slot = made->layout.slots[i];
      Initialize(slot.parameter, run_.train.seed, slot.layer, made->weights->parameters()[i]);
    }
    for (int i = 0; i < made->optimizer.state_buffers(); ++i) {
      absl::StatusOr<Tensor> state = NewZeros(made->layout.elements, MemoryClass::kOptimizer);
      if (!state.ok()) return state.status();
      made->optimizer_state.push_back(*std::move(state));
    }
  }
  stages_[stage] = std::move(made);
  return absl::OkStatus();
}

// A boundary tensor at the entry of `stage` is [samples, context, width] or [samples, width].
absl::Status CpuRank::CheckActivation(const char* what, const Stage& stage, const Tensor& tensor) const {
  TensorShape expected;
  const int64_t samples = run_.microbatch_samples();
  if (const auto* gpt = std::get_if<GptSpec>(&run_.model)) {
    expected = {DataType::kFloat32, 3, {samples, gpt->context, gpt->width}};
  } else {
    expected = {DataType::kFloat32, 2, {samples, std::get<MlpSpec>(run_.model).width}};
  }
  size_t bytes = sizeof(float);
  for (int i = 0; i < expected.dims; ++i) bytes *= static_cast<size_t>(expected.size[i]);
  if (tensor.shape == expected && tensor.bytes == bytes && tensor.data != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the %s of stage %d came with %d dimensions and %d bytes, expected are %d and %d", what,
                      stage.layout.stage, tensor.shape.dims, tensor.bytes, expected.dims, bytes));
}

// Kernels may give other bits on memory that is aligned otherwise, so such memory is copied.
bool IsAligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) % SegmentAllocator::kAlignment == 0;
}

at::Tensor WrapAligned(const Tensor& tensor) {
  const at::Tensor wrapped = Wrap(tensor);
  return IsAligned(tensor) ? wrapped : wrapped.clone();
}

absl::StatusOr<Tensor> CpuRank::AlignedWeights(const Stage& stage, Tensor fetched) {
  if (absl::Status s = CheckFlat("weights", fetched, stage.layout.elements); !s.ok()) return s;
  if (IsAligned(fetched)) return fetched;
  absl::StatusOr<Tensor> copy = NewFlat(*memory_, stage.layout.elements, MemoryClass::kWeights);
  if (copy.ok()) std::memcpy(copy->data, fetched.data, fetched.bytes);
  return copy;
}

// Sets the weights of a pass: those that came with the job, else the held ones.
absl::Status CpuRank::ChooseWeights(Stage& stage, Tensor fetched, Pass* pass) {
  if (fetched.empty()) {
    if (stage.weights == nullptr) {
      return absl::FailedPreconditionError("the job came without weights, and this rank does not hold them");
    }
    pass->weights = stage.weights;
    pass->use = StageWeights::Use(stage.weights);
    pass->fetched = false;
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> aligned = AlignedWeights(stage, std::move(fetched));
  if (!aligned.ok()) return aligned.status();
  if (stage.spare.empty()) stage.spare.push_back(std::make_shared<StageWeights>(stage.layout));
  pass->weights = std::move(stage.spare.back());
  stage.spare.pop_back();
  pass->weights->Bind(*std::move(aligned));
  pass->fetched = true;
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> CpuRank::Inputs(const Job& job, const Tensor& input) {
  if (job.stage > 0) return WrapAligned(input);
  const bool tokens = data_->input_type() == DataType::kInt64;
  at::Tensor x = at::empty({run_.microbatch_samples(), data_->inputs()}, tokens ? c10::kLong : c10::kFloat);
  absl::Status s = data_->ReadInputs(run_.train, job.step, job.microbatch, x.data_ptr());
  if (!s.ok()) return s;
  return x;
}

absl::StatusOr<at::Tensor> CpuRank::Targets(const Job& job) {
  at::Tensor targets = at::empty({run_.microbatch_samples() * data_->targets()}, c10::kLong);
  absl::Status s =
      data_->ReadTargets(run_.train, job.step, job.microbatch, targets.mutable_data_ptr<int64_t>());
  if (!s.ok()) return s;
  return targets;
}

absl::StatusOr<ForwardResult> CpuRank::Forward(const Job& job, Tensor input, Tensor weights) {
  return Guarded([&] { return Describe(job); },
                 [&] { return DoForward(job, std::move(input), std::move(weights)); });
}

absl::StatusOr<ForwardResult> CpuRank::DoForward(const Job& job, Tensor input, Tensor weights) {
  absl::StatusOr<Stage*> found = StageOf(job.stage);
  if (!found.ok()) return found.status();
  Stage& stage = **found;
  if (job.kind != JobKind::kForward || stage.passes.contains({job.step, job.microbatch})) {
    return absl::FailedPreconditionError("it is no forward, or ran before");
  }
  if (job.stage > 0) {
    if (absl::Status s = CheckActivation("input", stage, input); !s.ok()) return s;
  }
  Pass pass;
  if (absl::Status s = ChooseWeights(stage, std::move(weights), &pass); !s.ok()) return s;

  MemoryScope scope(memory_.get(), MemoryClass::kActivations);
  absl::StatusOr<at::Tensor> x = Inputs(job, input);
  if (!x.ok()) return x.status();
  input = {};
  at::Tensor targets;
  if (last(stage)) {
    absl::StatusOr<at::Tensor> read = Targets(job);
    if (!read.ok()) return read.status();
    targets = *std::move(read);
  }
  const MaskKey key{run_.train.seed, job.step, job.microbatch};
  PassOutput output = RunForward(layers_, stage.layout, *x, targets, key, &pass);
  if (pass.fetched) pass.weights->Unbind();
  stage.passes.emplace(std::pair(job.step, job.microbatch), std::move(pass));

  ForwardResult result;
  if (output.activation.defined()) result.activation = Unwrap(output.activation);
  if (output.loss.has_value()) result.loss = static_cast<double>(*output.loss);
  return result;
}

absl::StatusOr<BackwardResult> CpuRank::Backward(const Job& job, Tensor output_gradient, Tensor weights,
                                                 bool hand_out) {
  return Guarded([&] { return Describe(job); },
                 [&] { return DoBackward(job, std::move(output_gradient), std::move(weights), hand_out); });
}

// The gradient that the pass starts from: the next stage's, or the loss's own.
absl::StatusOr<at::Tensor> CpuRank::OutputGradient(const Stage& stage, const Pass& pass, PassHalf half,
                                                   const Tensor& given) {
  if (half == PassHalf::kWeight) {
    if (!pass.output_gradient.defined())
      return absl::FailedPreconditionError("its backward_input did not run");
    return pass.output_gradient;
  }
  if (pass.output_gradient.defined()) return absl::FailedPreconditionError("its backward_input ran before");
  if (last(stage)) return loss_gradient_;
  if (absl::Status s = CheckActivation("output gradient", stage, given); !s.ok()) return s;
  return WrapAligned(given);
}

// Brings a fetched copy of the weights back under a pass that ran on one.
absl::Status CpuRank::Rebind(const Stage& stage, Tensor fetched, Pass* pass) {
  if (!pass->fetched) return absl::OkStatus();
  if (fetched.empty()) {
    if (stage.weights == nullptr) {
      return absl::FailedPreconditionError("the job came without weights, and this rank does not hold them");
    }
    fetched = stage.weights->memory();
  }
  absl::StatusOr<Tensor> aligned = AlignedWeights(stage, std::move(fetched));
  if (!aligned.ok()) return aligned.status();
  pass->weights->Bind(*std::move(aligned));
  return absl::OkStatus();
}

absl::StatusOr<BackwardResult> CpuRank::DoBackward(const Job& job, Tensor output_gradient, Tensor weights,
                                                   bool hand_out) {
  absl::StatusOr<Stage*> found = StageOf(job.stage);
  if (!found.ok()) return found.status();
  Stage& stage = **found;
  const PassHalf half = job.kind == JobKind::kBackwardInput    ? PassHalf::kInput
                        : job.kind == JobKind::kBackwardWeight ? PassHalf::kWeight
                                                               : PassHalf::kBoth;
  const auto entry = stage.passes.find({job.step, job.microbatch});
  if (entry == stage.passes.end()) {
    return absl::FailedPreconditionError("there is no forward that waits for it on this rank");
  }
  Pass& pass = entry->second;
  MemoryScope scope(memory_.get(), MemoryClass::kBuffers);
  absl::StatusOr<at::Tensor> start = OutputGradient(stage, pass, half, output_gradient);
  if (!start.ok()) return start.status();
  if (absl::Status s = Rebind(stage, std::move(weights), &pass); !s.ok()) return s;

  const PassGradients gradients = RunBackward(pass, *start, half);
  if (pass.fetched) pass.weights->Unbind();
  BackwardResult result;
  if (gradients.input.defined()) result.input_gradient = Unwrap(gradients.input);
  if (half == PassHalf::kInput) {
    pass.output_gradient = *std::move(start);
    return result;
  }
  if (pass.fetched) stage.spare.push_back(std::move(pass.weights));
  stage.passes.erase(entry);

  std::vector<GradientSum::Piece> pieces;
  pieces.reserve(gradients.parameters.size());
  for (size_t i = 0; i < gradients.parameters.size(); ++i) {
    const at::Tensor& g = gradients.parameters[i];
    pieces.push_back({stage.layout.slots[i].offset, g.numel(), g.const_data_ptr<float>()});
  }
  if (!hand_out) {
    if (stage.weights == nullptr) {
      return absl::FailedPreconditionError(
          "this rank keeps no gradient sum of the stage: hand the gradient out");
    }
    if (absl::Status s = stage.sums.Add(job.step, job.microbatch, pieces); !s.ok()) return s;
    return result;
  }
  absl::StatusOr<Tensor> flat = NewFlat(*memory_, stage.layout.elements, MemoryClass::kGradients);
  if (!flat.ok()) return flat.status();
  WritePieces(pieces, static_cast<float*>(flat->data), stage.layout.elements);
  result.gradient = *std::move(flat);
  return result;
}

absl::Status CpuRank::Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) {
  auto what = [&] { return absl::StrFormat("adding micro-batch %d in %s", microbatch, Describe(job)); };
  return Guarded(what, [&]() -> absl::Status {
    absl::StatusOr<Stage*> stage = HeldStage(job.stage);
    return stage.ok() ? (*stage)->sums.Add(job.step, microbatch, slice, part, parts) : stage.status();
  });
}

absl::StatusOr<Tensor> CpuRank::TakeSum(const Job& job, int part, int parts) {
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? (*stage)->sums.Take(job.step, part, parts) : stage.status();
                 });
}

absl::Status CpuRank::Update(const Job& job, const std::vector<Tensor>& sums) {
  std::vector<Tensor> parts = sums;
  if (parts.empty()) {
    absl::StatusOr<Tensor> own = TakeSum(job, 0, 1);
    if (!own.ok()) return own.status();
    parts.push_back(*std::move(own));
  }
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::Status {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   if (!stage.ok()) return stage.status();
                   return ApplyUpdate(**stage, parts);
                 });
}

absl::Status CpuRank::ApplyUpdate(Stage& stage, const std::vector<Tensor>& parts) {
  const int64_t elements = stage.layout.elements;
  const int count = static_cast<int>(parts.size());
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    if (absl::Status s = CheckFlat("summed gradients", parts[i], bounds.end - bounds.begin); !s.ok())
      return s;
  }
  std::shared_ptr<StageWeights> next = stage.weights;
  if (stage.weights->in_use()) {
    absl::StatusOr<Tensor> flat = NewFlat(*memory_, elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    next = std::make_shared<StageWeights>(stage.layout);
    next->Bind(*std::move(flat));
  }
  stage.optimizer.Begin();
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    Optimizer::State state{};
    for (size_t k = 0; k < stage.optimizer_state.size(); ++k) {
      state[k] = static_cast<float*>(stage.optimizer_state[k].data) + bounds.begin;
    }
    stage.optimizer.Apply(stage.weights->data() + bounds.begin, next->data() + bounds.begin,
                          static_cast<const float*>(parts[i].data), state, bounds.end - bounds.begin);
  }
  stage.weights = std::move(next);
  ++stage.version;
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CpuRank::Weights(int stage) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  Tensor weights = (*found)->weights->memory();
  weights.owner = StageWeights::Use((*found)->weights);
  return weights;
}

absl::Status CpuRank::Save(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  const Stage& held = **found;
  std::vector<const float*> values;
  for (const ParameterSlot& slot : held.layout.slots) values.push_back(held.weights->data() + slot.offset);
  return WriteStageFile(folder, held.layout, values, held.version);
}

class CpuDevice final : public Device {
 public:
  absl::string_view name() const override { return "cpu"; }

  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const RunSpec& run, Rank rank,
                                                          MemorySource& memory) override {
    auto what = [&] { return absl::StrCat("rank ", rank); };
    return Guarded(what, [&]() -> absl::StatusOr<std::unique_ptr<RankCompute>> {
      int layers = 0;
      for (int n : run.layers_of_stage) layers += n;
      if (layers != static_cast<int>(DescribeLayers(run.model).size())) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the stages have %d layers, the model has %d", layers,
                            static_cast<int>(DescribeLayers(run.model).size())));
      }
      absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
      if (!data.ok()) return data.status();
      return std::unique_ptr<RankCompute>(new CpuRank(run, *std::move(data), memory));
    });
  }
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice() {
  PrepareProcess();
  InstallTorchAllocator();
  return std::make_unique<CpuDevice>();
}

}  // namespace weft
