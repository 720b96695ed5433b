#include "worker/shell/compute/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/run/learning_rate.h"
#include "proto/run/model_layers.h"
#include "proto/run/run_schedule.h"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/data.h"
#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/safetensors.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/compute/torch_layers.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

// How many updates older than the newest the weights of a stage are that a micro-batch reads, where there
// have been that many. Stages and micro-batches count from 0.
using Staleness = std::function<int(int stage, int microbatch)>;

absl::StatusOr<Staleness> StalenessOf(const RunSpec& run) {
  const int stages = run.stages(), microbatches = run.train.microbatches;
  const ScheduleSpec& schedule = run.schedule;
  // All of theta_hat is theta_{t-1}.
  if (schedule.rule == "cdp_v1") return [](int, int) { return 1; };
  // Counted from 1: stage j of micro-batch i is of theta_t if j >= N - i + 1, else of theta_{t-1}.
  if (schedule.rule == "cdp_v2") {
    return [microbatches](int stage, int b) {
      const int j = stage + 1, i = b + 1;
      return j >= microbatches - i + 1 ? 0 : 1;
    };
  }
  // A step is a micro-batch; the last stage reads the newest, each stage before it one update less.
  if (schedule.name == "pipedream") return [stages](int stage, int) { return stages - 1 - stage; };
  if (schedule.name == "pipedream_2bw") return [](int, int) { return 1; };
  if (schedule.name == "custom" && schedule.parameters.count("staleness") != 0) {
    // The user's own formula is its definition.
    const absl::StatusOr<Schedule> made = ScheduleOf(run);
    if (!made.ok()) return made.status();
    return made->staleness;
  }
  return [](int, int) { return 0; };
}

// The tensor of that name, into `values` of its size.
absl::Status Take(const SafetensorsFile& file, const std::string& name, at::Tensor values) {
  const SafetensorsEntry* entry = file.header.Find(name);
  const size_t bytes = static_cast<size_t>(values.numel()) * sizeof(float);
  if (entry == nullptr || entry->end - entry->begin != bytes)
    return absl::DataLossError(absl::StrCat("the checkpoint does not hold ", name, " as the model has it"));
  std::memcpy(values.mutable_data_ptr(), file.data.data() + entry->begin, bytes);
  return absl::OkStatus();
}

struct Parameter {
  ParameterSpec::Kind kind;
  int stage;
  // theta_t, theta_{t-1}, .. as far back as somebody may read.
  std::deque<at::Tensor> values;
  at::Tensor gradient;  // the sum of this step
  std::vector<at::Tensor> state;
  Optimizer optimizer;
};

class PlainModel {
 public:
  PlainModel(const RunSpec& run, Staleness staleness)
      : run_(run),
        staleness_(std::move(staleness)),
        counts_(CountLayers(run.model)),
        layers_(BuildLayers(run.model)) {
    const std::vector<LayerSpec> specs = DescribeLayers(run.model);
    int stage = 0, end = run.layers_of_stage[0];
    for (size_t l = 0; l < specs.size(); ++l) {
      while (static_cast<int>(l) == end) end += run.layers_of_stage[++stage];
      std::vector<size_t> numbers;
      for (const ParameterSpec& spec : specs[l].parameters) {
        Parameter p{spec.kind, stage, {at::empty(spec.size, c10::kFloat)},
                    {},        {},    Optimizer(run.train.optimizer)};
        Initialize(spec, run.train.seed, static_cast<int>(l), p.values[0]);
        for (int i = 0; i < p.optimizer.state_buffers(); ++i) p.state.push_back(at::zeros_like(p.values[0]));
        p.values[0].set_requires_grad(true);
        numbers.push_back(parameters_.size());
        parameters_.push_back(std::move(p));
      }
      of_layer_.push_back(std::move(numbers));
    }
  }

  at::Tensor Loss(const at::Tensor& inputs, const at::Tensor& targets, const MaskKey& key) const {
    std::vector<at::Tensor> outputs;
    for (size_t l = 0; l < layers_.size(); ++l) {
      std::vector<at::Tensor> read;
      for (const int from : counts_[l].inputs) read.push_back(outputs[from]);
      if (read.empty()) read.push_back(inputs);
      std::vector<at::Tensor> weights;
      for (const size_t i : of_layer_[l]) weights.push_back(Read(parameters_[i], key.microbatch));
      outputs.push_back(layers_[l]->Forward(read.data(), weights.data(), key));
    }
    return weft::Loss(outputs.back(), targets);
  }

  // Takes the gradients that the micro-batch's backward has left into the sums of its step.
  void AddGradients(int microbatch) {
    for (Parameter& p : parameters_) {
      at::Tensor& gradient = Read(p, microbatch).mutable_grad();
      p.gradient = p.gradient.defined() ? p.gradient + gradient : gradient;
      gradient.reset();
    }
  }

  // The norm of the sums, all that is trained together.
  absl::StatusOr<double> GradientNorm() const {
    SumOfSquares squares;
    for (const Parameter& p : parameters_) {
      if (p.kind == ParameterSpec::Kind::kStatistic) continue;
      const at::Tensor gradient = p.gradient.contiguous();
      if (!squares.Add(gradient.const_data_ptr<float>(), gradient.numel())) return NoNormError(p.stage);
    }
    return squares.Norm();
  }

  // All parameters' sums shrink alike, to a norm of clip_norm.
  void ClipGradients(double norm) {
    if (norm <= run_.train.clip_norm) return;
    for (Parameter& p : parameters_) {
      if (p.kind != ParameterSpec::Kind::kStatistic) p.gradient = p.gradient * (run_.train.clip_norm / norm);
    }
  }

  // theta_t becomes theta_{t+1}, by the sums.
  void Update(int t) {
    const double rate = LearningRateAt(run_.train, t);
    for (Parameter& p : parameters_) {
      at::Tensor next = p.kind == ParameterSpec::Kind::kStatistic ? MovedAverage(p) : Trained(&p, rate);
      next.set_requires_grad(true);
      p.values.push_front(std::move(next));
      if (static_cast<int>(p.values.size()) > Oldest(p.stage) + 1) p.values.pop_back();
      p.gradient.reset();
    }
  }

  absl::Status Save(const std::string& folder, int version) const {
    size_t next = 0;
    for (int stage = 0; stage < run_.stages(); ++stage) {
      const StageLayout layout = LayOutStage(run_, stage);
      std::vector<const float*> values;
      std::vector<SlotPointers> beside;  // theta_{t-k}, .., theta_{t-1}, then the optimizer's
      for (size_t i = 0; i < layout.slots.size(); ++i) {
        const Parameter& p = parameters_.at(next++);
        values.push_back(p.values.front().const_data_ptr<float>());
        size_t buffer = 0;
        const auto add = [&](const at::Tensor& tensor) {
          if (buffer == beside.size()) beside.emplace_back();
          beside[buffer++].push_back(tensor.const_data_ptr<float>());
        };
        for (size_t age = p.values.size() - 1; age > 0; --age) add(p.values[age]);
        for (const at::Tensor& state : p.state) add(state);
      }
      absl::Status s = version == 0
                           ? WriteStageFile(folder, layout, values, 0)
                           : WriteTrainingState(folder, layout, Rule(stage), version, values, beside);
      if (!s.ok()) return s;
    }
    return WriteCheckpointIndex(folder, run_);
  }

  // theta_t, those before it that are still read, and the optimizer's state, where a run stopped before step
  // t.
  absl::Status Load(const std::string& folder, int t) {
    size_t next = 0;
    for (int stage = 0; stage < run_.stages(); ++stage) {
      const auto weights = ReadSafetensors(absl::StrCat(folder, "/", StageFileName(stage)));
      if (!weights.ok()) return weights.status();
      const auto state = ReadSafetensors(absl::StrCat(folder, "/", StateFileName(stage)));
      if (!state.ok()) return state.status();
      for (const ParameterSlot& slot : LayOutStage(run_, stage).slots) {
        Parameter& p = parameters_.at(next++);
        const std::string name = CheckpointName(stage, slot);
        absl::Status taken = Take(*weights, name, p.values.front().detach());
        for (int age = 1; age <= std::min(t, Oldest(stage)); ++age) {
          p.values.push_back(at::empty_like(p.values.front().detach()));
          taken.Update(Take(*state, absl::StrCat(name, ".version", t - age), p.values.back()));
          p.values.back().set_requires_grad(true);
        }
        for (size_t i = 0; i < p.state.size(); ++i)
          taken.Update(Take(*state, absl::StrCat(name, ".", p.optimizer.state_names()[i]), p.state[i]));
        if (!taken.ok()) return taken;
        p.optimizer.Resume(t);
      }
    }
    return absl::OkStatus();
  }

 private:
  // The most that a micro-batch is behind on the stage.
  int Oldest(int stage) const {
    int oldest = 0;
    for (int b = 0; b < run_.train.microbatches; ++b) oldest = std::max(oldest, staleness_(stage, b));
    return oldest;
  }

  StateRule Rule(int stage) const {
    StateRule rule{{}, run_.train.optimizer};
    for (int b = 0; b < run_.train.microbatches; ++b) rule.staleness.push_back(staleness_(stage, b));
    return rule;
  }

  // What the micro-batch reads: as old as its rule says, or the first.
  const at::Tensor& Read(const Parameter& p, int microbatch) const {
    const auto most = static_cast<int>(p.values.size()) - 1;
    return p.values[std::min(staleness_(p.stage, microbatch), most)];
  }

  static at::Tensor Trained(Parameter* p, double rate) {
    Optimizer::State state{};
    for (size_t i = 0; i < p->state.size(); ++i) state[i] = p->state[i].mutable_data_ptr<float>();
    const at::Tensor gradient = p->gradient.contiguous();
    const at::Tensor& value = p->values.front();
    at::Tensor next = at::empty_like(value.detach());
    p->optimizer.Begin(rate);
    p->optimizer.Apply(HostMath(), value.const_data_ptr<float>(), next.mutable_data_ptr<float>(),
                       gradient.const_data_ptr<float>(), state, nullptr, value.numel());
    return next;
  }

  // The gradient of a running average is the sum of what the micro-batches measured (batch_norm.h).
  at::Tensor MovedAverage(const Parameter& p) const {
    at::NoGradGuard no_grad;
    const at::Tensor measured = p.gradient / run_.train.microbatches;
    return p.values.front() * (1 - kStatisticMomentum) + measured * kStatisticMomentum;
  }

  const RunSpec& run_;
  const Staleness staleness_;
  const std::vector<LayerCount> counts_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Parameter> parameters_;          // in the order of layers
  std::vector<std::vector<size_t>> of_layer_;  // their numbers
};

absl::Status Train(const RunSpec& run, const std::string& out_dir,
                   const std::function<bool(const ReferenceStep&)>& on_step) {
  absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
  if (!data.ok()) return data.status();
  const int64_t samples = run.microbatch_samples();
  const c10::ScalarType input_type = (*data)->input_type() == DataType::kInt64 ? c10::kLong : c10::kFloat;
  absl::StatusOr<Staleness> staleness = StalenessOf(run);
  if (!staleness.ok()) return staleness.status();
  PlainModel model(run, *std::move(staleness));
  if (run.first_step() > 0) {
    absl::Status loaded = CheckResume(run);
    if (loaded.ok()) loaded = model.Load(run.resume.checkpoint, run.first_step());
    if (!loaded.ok()) return loaded;
  } else if (!out_dir.empty()) {
    if (absl::Status s = model.Save(absl::StrCat(out_dir, "/checkpoint-0"), 0); !s.ok()) return s;
  }
  for (int step = run.first_step(); step < run.end_step(); ++step) {
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
      model.AddGradients(b);
    }
    std::optional<double> gradient_norm;
    if (run.train.clip_norm > 0) {
      const absl::StatusOr<double> norm = model.GradientNorm();
      if (!norm.ok())
        return absl::Status(norm.status().code(), absl::StrCat("step ", step, ": ", norm.status().message()));
      gradient_norm = *norm;
      model.ClipGradients(*norm);
    }
    model.Update(step);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!on_step({step, loss_sum / run.train.microbatches, seconds.count(), gradient_norm})) {
      return absl::CancelledError(absl::StrCat("the reference was stopped after step ", step));
    }
  }
  return out_dir.empty() ? absl::OkStatus()
                         : model.Save(absl::StrCat(out_dir, "/checkpoint"), run.end_step());
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
