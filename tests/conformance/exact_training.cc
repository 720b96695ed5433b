#include "tests/conformance/exact_training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "run/learning_rate.h"
#include "run/model_layers.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/data/data.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft::testing {
namespace {

struct ExactParameter {
  std::string name;  // in checkpoints
  ParameterSlot slot;
  at::Tensor value, sum;           // float64; `sum` of the step's gradients
  std::vector<at::Tensor> memory;  // of the optimizer
};

absl::Status CheckWithoutDropout(const ModelSpec& model) {
  const double dropout = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.dropout; }) {
          return m.dropout;
        } else {
          return 0.0;
        }
      },
      model);
  if (dropout == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "what float32 is compared with has no dropout in float64: set the model's dropout to 0");
}

class Loop {
 public:
  Loop(const RunSpec& run, const Disturbance& disturbance)
      : run_(run),
        disturbance_(disturbance),
        data_(Require(Dataset::Open(run))),
        counts_(CountLayers(run.model)),
        layers_(BuildLayers(run.model)),
        generator_(at::make_generator<at::CPUGeneratorImpl>(disturbance.seed)) {
    for (int s = 0; s < run.stages(); ++s) {
      for (const ParameterSlot& slot : LayOutStage(run, s).slots) {
        const at::Tensor begun = at::empty(slot.parameter.size, c10::kFloat);
        Require(Initialize(slot.parameter, run.train.seed, slot.layer, begun));
        parameters_.push_back({CheckpointName(s, slot), slot, begun.to(c10::kDouble), {}, {}});
      }
    }
  }

  Trajectory Run() {
    Trajectory trajectory;
    trajectory.weights[0] = Values();
    for (int t = 0; t < run_.end_step(); ++t) {
      double loss = 0;
      for (int b = 0; b < run_.train.microbatches; ++b) loss += TrainMicrobatch(t, b);
      trajectory.losses.push_back(loss / run_.train.microbatches);
      Update(t);
      trajectory.weights[t + 1] = Values();
    }
    return trajectory;
  }

 private:
  // Ones, up and down.
  at::Tensor Signs(const at::Tensor& like) {
    return at::empty(like.sizes(), like.options()).bernoulli_(0.5, generator_) * 2 - 1;
  }

  at::Tensor Off(const at::Tensor& value, const at::Tensor& scale) {
    return disturbance_.relative == 0 ? value : value + Signs(value) * scale * disturbance_.relative;
  }

  static at::Tensor RootMeanSquare(const at::Tensor& gradient) {
    const at::Tensor squares = gradient * gradient;
    if (gradient.dim() < 2) return squares.mean().sqrt();
    std::vector<int64_t> size(static_cast<size_t>(gradient.dim()), 1);
    size[0] = gradient.size(0);
    return squares.flatten(1).mean(1).sqrt().view(size);
  }

  double TrainMicrobatch(int t, int b) {
    const int64_t samples = run_.microbatch_samples();
    const bool tokens = data_->input_type() == DataType::kInt64;
    at::Tensor inputs = at::empty({samples, data_->inputs()}, tokens ? c10::kLong : c10::kFloat);
    at::Tensor targets = at::empty({samples * data_->targets()}, c10::kLong);
    Require(data_->ReadInputs(run_, t, b, inputs.data_ptr()));
    Require(data_->ReadTargets(run_, t, b, targets.mutable_data_ptr<int64_t>()));
    if (!tokens) inputs = inputs.to(c10::kDouble);

    std::vector<at::Tensor> leaves;
    for (const ExactParameter& p : parameters_) {
      leaves.push_back(Off(p.value, p.value.abs()).detach().clone().set_requires_grad(true));
    }
    const at::Tensor loss = at::cross_entropy_loss(Scores(inputs, leaves, {run_.train.seed, t, b}), targets);
    (loss / run_.train.microbatches).backward();
    for (size_t i = 0; i < leaves.size() && b != disturbance_.without_microbatch; ++i) {
      const at::Tensor gradient = Off(leaves[i].grad(), RootMeanSquare(leaves[i].grad()));
      at::Tensor& sum = parameters_[i].sum;
      sum = sum.defined() ? sum + gradient : gradient;
    }
    return loss.item<double>();
  }

  at::Tensor Scores(const at::Tensor& data, const std::vector<at::Tensor>& leaves, const MaskKey& key) const {
    std::vector<at::Tensor> outputs;
    size_t slot = 0;
    for (size_t l = 0; l < layers_.size(); ++l) {
      std::vector<at::Tensor> read;
      for (const int from : counts_[l].inputs) read.push_back(outputs[from]);
      if (counts_[l].reads_data) read.push_back(data);
      outputs.push_back(layers_[l]->Forward(read.data(), leaves.data() + slot, key));
      while (slot < leaves.size() && parameters_[slot].slot.layer == static_cast<int>(l)) ++slot;
    }
    return outputs.back();
  }

  void Update(int t) {
    at::NoGradGuard no_grad;
    const double lr = LearningRateAt(run_.train, t);
    for (ExactParameter& p : parameters_) {
      if (p.slot.parameter.kind == ParameterSpec::Kind::kStatistic) {
        constexpr double kMomentum = 0.1;
        p.value = p.value * (1 - kMomentum) + p.sum / run_.train.microbatches * kMomentum;
      } else {
        std::visit([&](const auto& optimizer) { Step(optimizer, lr, t, &p); }, run_.train.optimizer);
      }
      p.sum.reset();
    }
  }

  static void Step(const SgdSpec& s, double lr, int t, ExactParameter* p) {
    const at::Tensor d = p->sum + p->value * s.weight_decay;
    if (t == 0) p->memory = {at::zeros_like(d)};
    p->memory[0] = p->memory[0] * s.momentum + d;
    p->value = p->value - p->memory[0] * lr;
  }

  static void Step(const AdamWSpec& s, double lr, int t, ExactParameter* p) {
    if (t == 0) p->memory = {at::zeros_like(p->sum), at::zeros_like(p->sum)};
    at::Tensor &mean = p->memory[0], &square = p->memory[1];
    mean = mean * s.beta1 + p->sum * (1 - s.beta1);
    square = square * s.beta2 + p->sum * p->sum * (1 - s.beta2);
    const at::Tensor unbiased_mean = mean / (1 - std::pow(s.beta1, t + 1));
    const at::Tensor unbiased_square = square / (1 - std::pow(s.beta2, t + 1));
    p->value = p->value * (1 - lr * s.weight_decay) - unbiased_mean / (unbiased_square.sqrt() + s.eps) * lr;
  }

  Trajectory::Weights Values() const {
    Trajectory::Weights values;
    for (const ExactParameter& p : parameters_) {
      const at::Tensor flat = p.value.contiguous();
      values[p.name].assign(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
    }
    return values;
  }

  const RunSpec& run_;
  const Disturbance disturbance_;
  const std::unique_ptr<Dataset> data_;
  const std::vector<LayerCount> counts_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  at::Generator generator_;
  std::vector<ExactParameter> parameters_;
};

}  // namespace

Trajectory TrainExactly(const RunSpec& run, const Disturbance& disturbance) {
  Require(CheckWithoutDropout(run.model));
  PrepareProcess();
  PrepareThread();
  return Loop(run, disturbance).Run();
}

}  // namespace weft::testing
