#include "worker/shell/torch/graph_program.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "run/exported_operations.h"
#include "worker/shell/compute/exported_weights.h"
#include "worker/shell/compute/initial_weights.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/batch_norm.h"
#include "worker/shell/torch/plugins.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {
namespace {

constexpr const char *kDropout = "aten::dropout", *kBatchNorm = "aten::batch_norm";

std::string FullNameOf(const GraphOperation& operation) {
  std::string name = operation.name;
  if (!operation.overload.empty()) absl::StrAppend(&name, ".", operation.overload);
  if (!operation.place.empty()) absl::StrAppend(&name, " (", operation.place, ")");
  return name;
}

// Calls `f` with the number of each value that the arguments hold.
template <typename F>
void ForEachRead(const std::vector<ReadyArgument>& arguments, F f) {
  for (const ReadyArgument& argument : arguments) {
    if (argument.value >= 0) f(argument.value);
    if (argument.values == nullptr) continue;
    for (const int number : argument.values->numbers) {
      if (number >= 0) f(number);
    }
  }
}

// Returns true for an operation that draws numbers: by its name, or by a rate of dropout among its arguments.
bool Draws(const GraphOperation& operation, const std::vector<c10::Argument>& schema,
           const std::vector<ReadyArgument>& given) {
  static const auto* const drawing = new std::set<std::string>{
      "aten::bernoulli",  "aten::exponential", "aten::normal",  "aten::normal_functional",
      "aten::rand",       "aten::rand_like",   "aten::randint", "aten::randn",
      "aten::randn_like", "aten::randperm",    "aten::uniform"};
  if (drawing->count(operation.name) != 0) return true;
  for (size_t i = 0; i < schema.size(); ++i) {
    const bool rate = schema[i].name() == "dropout_p" || schema[i].name() == "dropout";
    if (rate && !(given[i].fixed.isDouble() && given[i].fixed.toDouble() == 0)) return true;
  }
  return false;
}

torch::jit::Stack StackOf(const std::vector<ReadyArgument>& arguments,
                          const std::vector<at::Tensor>& values) {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (const ReadyArgument& argument : arguments) stack.push_back(ArgumentOf(argument, values));
  return stack;
}

at::Tensor OnHost(const at::Tensor& tensor) {
  return tensor.is_meta() ? at::zeros(tensor.sizes(), tensor.options().device(c10::kCPU)) : tensor;
}

// Returns the same argument with bytes on the host, all zero, where it has none.
c10::IValue OnHost(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return c10::IValue(OnHost(value.toTensor()));
  if (value.isDevice()) return c10::IValue(c10::Device(c10::DeviceType::CPU));
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(OnHost(tensor));
    return c10::IValue(std::move(list));
  }
  return value;
}

// Calls an operation on tensors without bytes. LibTorch has no form of some operations for these, without
// Python; such an operation is called with zeros.
void CallWithoutBytes(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const torch::jit::Stack given = *stack;
  try {
    handle.callBoxed(*stack);
  } catch (const c10::NotImplementedError&) {
    stack->clear();
    for (const c10::IValue& value : given) stack->push_back(OnHost(value));
    handle.callBoxed(*stack);
    for (c10::IValue& made : *stack) {
      if (made.isTensor() && made.toTensor().defined()) made = made.toTensor().to(c10::kMeta);
    }
  }
}

}  // namespace

absl::StatusOr<GraphProgram::Step> GraphProgram::StepOf(const GraphOperation& operation) const {
  const std::optional<c10::OperatorHandle> handle =
      c10::Dispatcher::singleton().findSchema({operation.name, operation.overload});
  if (IsForeignOperation(operation.name) && !IsOperationOfPlugin(operation.name, operation.overload))
    return absl::InvalidArgumentError("none of the run's plugins registers the operation");
  if (!handle.has_value()) return absl::InvalidArgumentError("this LibTorch does not have the operation");
  const c10::FunctionSchema& schema = handle->schema();
  const std::vector<c10::Argument>& wanted = schema.arguments();
  if (schema.is_mutable()) return absl::InvalidArgumentError("the operation writes to its arguments");
  if (wanted.size() != operation.arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the operation has ", wanted.size(),
                                                   " arguments, and the file ", operation.arguments.size()));
  }
  Step step{&operation, *handle};
  for (size_t i = 0; i < wanted.size(); ++i) {
    absl::StatusOr<ReadyArgument> ready = MakeReady(operation.arguments[i], wanted[i].type(), place_);
    if (!ready.ok())
      return absl::InvalidArgumentError(absl::StrCat(ready.status().message(), ": ", wanted[i].name()));
    step.arguments.push_back(*std::move(ready));
  }
  const std::vector<c10::Argument>& returns = schema.returns();
  step.returns_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  if (!step.returns_list && returns.size() != operation.results.size())
    return absl::InvalidArgumentError(absl::StrCat("the operation has ", returns.size(), " results"));
  if (absl::Status s = Classify(&step); !s.ok()) return s;
  return step;
}

// Finds out how the step runs.
absl::Status GraphProgram::Classify(Step* step) const {
  const GraphOperation& operation = *step->operation;
  if (operation.name == kDropout) {
    const c10::IValue& rate = step->arguments[1].fixed;
    if (step->arguments[0].value < 0 || !rate.isDouble() || !(rate.toDouble() >= 0 && rate.toDouble() < 1))
      return absl::InvalidArgumentError("a dropout has a rate from 0 to below 1");
    step->kind = Step::Kind::kDropout;
    step->number = rate.toDouble();
  } else if (operation.name == kBatchNorm) {
    if (absl::Status s = CheckBatchNorm(*step); !s.ok()) return s;
    step->kind = Step::Kind::kBatchNorm;
    step->number = step->arguments[7].fixed.toDouble();
  } else if (Draws(operation, step->handle.schema().arguments(), step->arguments)) {
    step->kind = Step::Kind::kDrawingCall;
  }
  return absl::OkStatus();
}

// Checks that a batch norm's averages are two statistics of the layer, which nothing else may read.
absl::Status GraphProgram::CheckBatchNorm(const Step& step) const {
  const int first = layer_.first_statistic(), end = first + static_cast<int>(layer_.statistics.size());
  for (const size_t average : {size_t{3}, size_t{4}}) {
    const int number = step.arguments[average].value;
    if (number < first || number >= end)
      return absl::InvalidArgumentError("a batch norm's running averages are statistics of its layer");
  }
  if (step.arguments[0].value < 0 || !step.arguments[7].fixed.isDouble())
    return absl::InvalidArgumentError("a batch norm has an input and a number as epsilon");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const GraphProgram>> GraphProgram::Make(const ExportedLayerSpec& spec,
                                                                       const GraphPlace& place) {
  const ExportedLayer& layer = spec.graph();
  std::unique_ptr<GraphProgram> program(new GraphProgram(layer, place));
  int sites = 0;
  for (const GraphOperation& operation : layer.operations) {
    absl::StatusOr<Step> step = program->StepOf(operation);
    if (!step.ok())
      return absl::InvalidArgumentError(absl::StrCat(FullNameOf(operation), ": ", step.status().message()));
    const bool draws = step->kind == Step::Kind::kDropout || step->kind == Step::Kind::kDrawingCall;
    if (draws) step->site = sites++;
    program->steps_.push_back(*std::move(step));
  }
  if (absl::Status s = program->ReadConstants(spec); !s.ok()) return s;
  program->Fold();
  program->NoteLastUses();
  return std::unique_ptr<const GraphProgram>(std::move(program));
}

absl::Status GraphProgram::ReadConstants(const ExportedLayerSpec& spec) {
  known_.resize(layer_.values);
  size_t number = layer_.first_statistic() + layer_.statistics.size();
  const auto initial = spec.initial.empty() ? InitialWeights() : InitialWeights::Open(spec.initial);
  if (!initial.ok()) return initial.status();
  for (const ExportedConstant& constant : layer_.constants) {
    const c10::ScalarType type = TorchTypeOf(constant.type);
    at::Tensor value = at::empty(constant.sizes, c10::TensorOptions().dtype(type).device(place_.device));
    if (!place_.device.is_meta()) {
      const at::Tensor held = at::empty(constant.sizes, TorchType(HeldTypeOf(constant)));
      const bool other = constant.is_frozen_parameter && initial->Has(constant.name);
      absl::Status read = other ? initial->Read(constant.name, constant.sizes, held.mutable_data_ptr<float>())
                                : ReadExportedConstant(spec.weights, constant, held.mutable_data_ptr());
      if (!read.ok()) return read;
      value.copy_(held);
    }
    known_[number++] = std::move(value);
  }
  return absl::OkStatus();
}

// Runs the steps whose arguments are all known, and leaves the others.
void GraphProgram::Fold() {
  at::NoGradGuard without_graph;
  std::vector<Step> rest;
  for (Step& step : steps_) {
    bool known = step.site < 0;
    ForEachRead(step.arguments, [&](int number) { known = known && known_[number].defined(); });
    if (known) {
      RunStep(step, MaskKey(), 0, &known_);
    } else {
      rest.push_back(std::move(step));
    }
  }
  steps_ = std::move(rest);
  KeepWhatIsRead();
}

// Gives back the known values that no step reads any more.
void GraphProgram::KeepWhatIsRead() {
  std::vector<bool> read(layer_.values);
  read[layer_.output] = true;
  for (const Step& step : steps_) ForEachRead(step.arguments, [&](int number) { read[number] = true; });
  for (size_t i = 0; i < known_.size(); ++i) {
    if (!read[i]) known_[i].reset();
  }
}

void GraphProgram::NoteLastUses() {
  std::vector<bool> used(layer_.values);
  used[layer_.output] = true;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const auto note = [&](int number) {
      if (!used[number]) step->last_use.push_back(number);
      used[number] = true;
    };
    ForEachRead(step->arguments, note);
    for (const int result : step->operation->results) {
      if (result >= 0) note(result);
    }
  }
}

void GraphProgram::RunStep(const Step& step, const MaskKey& key, int index,
                           std::vector<at::Tensor>* values) const {
  const std::vector<int>& results = step.operation->results;
  if (step.kind == Step::Kind::kDropout || step.kind == Step::Kind::kBatchNorm) {
    if (results[0] < 0) return;
    (*values)[results[0]] = step.kind == Step::Kind::kBatchNorm ? RunBatchNorm(step, key, *values)
                                                                : Dropout((*values)[step.arguments[0].value],
                                                                          step.number, key, index, step.site);
    return;
  }
  torch::jit::Stack stack = StackOf(step.arguments, *values);
  try {
    Call(step, key, index, &stack);
  } catch (c10::Error& error) {
    error.add_context(absl::StrCat("in ", FullNameOf(*step.operation), " of layer ", layer_.name));
    throw;
  }
  if (step.returns_list) {
    const c10::List<at::Tensor> list = stack[0].toTensorList();
    TORCH_CHECK(list.size() == results.size(), FullNameOf(*step.operation), " has made ", list.size(),
                " results");
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] >= 0) (*values)[results[i]] = list.get(i);
    }
    return;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] >= 0) (*values)[results[i]] = std::move(stack[i]).toTensor();
  }
}

at::Tensor GraphProgram::RunBatchNorm(const Step& step, const MaskKey& key,
                                      const std::vector<at::Tensor>& values) const {
  at::Tensor given[5];
  for (size_t i = 0; i < 5; ++i) {
    if (step.arguments[i].value >= 0) given[i] = values[step.arguments[i].value];
  }
  TORCH_CHECK(given[0].dim() > 1 && given[0].numel() > given[0].size(1), FullNameOf(*step.operation),
              " has one value of each channel; it needs micro-batches of more samples");
  if (place_.device.is_meta()) return at::empty_like(given[0]);
  return BatchNorm(given[0], given + 1, step.number, key.training);
}

void GraphProgram::Call(const Step& step, const MaskKey& key, int index, torch::jit::Stack* stack) const {
  if (place_.device.is_meta()) return CallWithoutBytes(step.handle, stack);
  if (step.kind != Step::Kind::kDrawingCall) return step.handle.callBoxed(*stack);
  TORCH_CHECK(key.numbers == nullptr, "the operation draws numbers, which captured work cannot");
  // LibTorch has one generator for all threads, and no operation that takes a seed.
  MutexLock lock(key.generator != nullptr ? *key.generator : HostGeneratorLock());
  at::Generator generator = at::globalContext().defaultGenerator(place_.device);
  generator.set_current_seed(MaskSeed(key.seed, key.step, key.microbatch, index, step.site));
  step.handle.callBoxed(*stack);
}

absl::Status GraphProgram::CheckCapturable() const {
  for (const Step& step : steps_) {
    const std::string why = step.kind == Step::Kind::kDrawingCall ? "draws numbers by LibTorch's generator"
                            : ReadsValuesOnHost(*step.operation)  ? "reads values on the host"
                            : IsForeignOperation(step.operation->name) ? "is an operation of a plug-in"
                                                                       : "";
    if (why.empty()) continue;
    return absl::UnimplementedError(
        absl::StrCat("layer ", layer_.name, ": ", FullNameOf(*step.operation), " ", why));
  }
  return absl::OkStatus();
}

int GraphProgram::dropout_sites() const {
  return static_cast<int>(std::count_if(steps_.begin(), steps_.end(),
                                        [](const Step& step) { return step.kind == Step::Kind::kDropout; }));
}

at::Tensor GraphProgram::Run(const std::vector<at::Tensor>& given, const MaskKey& key, int index) const {
  std::vector<at::Tensor> values = known_;
  std::copy(given.begin(), given.end(), values.begin());
  for (const Step& step : steps_) {
    RunStep(step, key, index, &values);
    for (const int number : step.last_use) values[number].reset();
  }
  return values[layer_.output].contiguous();
}

}  // namespace weft
