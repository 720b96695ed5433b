#include "worker/shell/compute/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/run/model_layers.h"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/data.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/torch_layers.h"

namespace weft {
namespace {

struct Parameter {
  at::Tensor value;
  std::vector<at::Tensor> state;
  Optimizer optimizer;
};

class PlainModel {
 public:
  explicit PlainModel(const RunSpec& run)
      : run_(run), counts_(CountLayers(run.model)), layers_(BuildLayers(run.model)) {
    const std::vector<LayerSpec> specs = DescribeLayers(run.model);
    for (size_t l = 0; l < specs.size(); ++l) {
      std::vector<at::Tensor> tensors;
      for (const ParameterSpec& spec : specs[l].parameters) {
        Parameter p{at::empty(spec.size, c10::kFloat), {}, Optimizer(run.train.optimizer)};
        Initialize(spec, run.train.seed, static_cast<int>(l), p.value);
        for (int i = 0; i < p.optimizer.state_buffers(); ++i) p.state.push_back(at::zeros_like(p.value));
        p.value.set_requires_grad(true);
        tensors.push_back(p.value);
        parameters_.push_back(std::move(p));
      }
      of_layer_.push_back(std::move(tensors));
    }
  }

  at::Tensor Loss(const at::Tensor& inputs, const at::Tensor& targets, const MaskKey& key) const {
    std::vector<at::Tensor> outputs;
    for (size_t l = 0; l < layers_.size(); ++l) {
      std::vector<at::Tensor> read;
      for (const int from : counts_[l].inputs) read.push_back(outputs[from]);
      if (read.empty()) read.push_back(inputs);
      outputs.push_back(layers_[l]->Forward(read.data(), of_layer_[l].data(), key));
    }
    return weft::Loss(outputs.back(), targets);
  }

  void Update() {
    for (Parameter& p : parameters_) {
      Optimizer::State state{};
      for (size_t i = 0; i < p.state.size(); ++i) state[i] = p.state[i].mutable_data_ptr<float>();
      const at::Tensor gradient = p.value.grad().contiguous();
      float* value = p.value.mutable_data_ptr<float>();
      p.optimizer.Begin();
      p.optimizer.Apply(value, value, gradient.const_data_ptr<float>(), state, p.value.numel());
      p.value.mutable_grad().reset();
    }
  }

  absl::Status Save(const std::string& folder, int version) const {
    size_t next = 0;
    for (int stage = 0; stage < run_.stages(); ++stage) {
      const StageLayout layout = LayOutStage(run_, stage);
      std::vector<const float*> values;
      for (size_t i = 0; i < layout.slots.size(); ++i) {
        values.push_back(parameters_.at(next++).value.const_data_ptr<float>());
      }
      if (absl::Status s = WriteStageFile(folder, layout, values, version); !s.ok()) return s;
    }
    return WriteCheckpointIndex(folder, run_);
  }

 private:
  const RunSpec& run_;
  const std::vector<LayerCount> counts_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Parameter> parameters_;              // in the order of layers
  std::vector<std::vector<at::Tensor>> of_layer_;  // the same tensors
};

absl::Status Train(const RunSpec& run, const std::string& out_dir,
                   const std::function<bool(const ReferenceStep&)>& on_step) {
  absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
  if (!data.ok()) return data.status();
  const int64_t samples = run.microbatch_samples();
  const c10::ScalarType input_type = (*data)->input_type() == DataType::kInt64 ? c10::kLong : c10::kFloat;
  PlainModel model(run);
  if (!out_dir.empty()) {
    if (absl::Status s = model.Save(absl::StrCat(out_dir, "/checkpoint-0"), 0); !s.ok()) return s;
  }
  for (int step = 0; step < run.train.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0;
    for (int b = 0; b < run.train.microbatches; ++b) {
      at::Tensor inputs = at::empty({samples, (*data)->inputs()}, input_type);
      at::Tensor targets = at::empty({samples * (*data)->targets()}, c10::kLong);
      absl::Status s = (*data)->ReadInputs(run.train, step, b, inputs.data_ptr());
      if (s.ok()) s = (*data)->ReadTargets(run.train, step, b, targets.mutable_data_ptr<int64_t>());
      if (!s.ok()) return s;
      const at::Tensor loss = model.Loss(inputs, targets, {run.train.seed, step, b});
      loss_sum += static_cast<double>(loss.item<float>());
      (loss / run.train.microbatches).backward();
    }
    model.Update();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!on_step({step, loss_sum / run.train.microbatches, seconds.count()})) {
      return absl::CancelledError(absl::StrCat("the reference was stopped after step ", step));
    }
  }
  return out_dir.empty() ? absl::OkStatus()
                         : model.Save(absl::StrCat(out_dir, "/checkpoint"), run.train.steps);
}

}  // namespace

absl::Status RunReference(const RunSpec& run, const std::string& out_dir,
                          const std::function<bool(const ReferenceStep&)>& on_step) {
  try {
    PrepareProcess();
    PrepareThread();
    return Train(run, out_dir, on_step);
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat("reference: LibTorch: ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("reference: LibTorch: ", e.what()));
  }
}

}  // namespace weft
