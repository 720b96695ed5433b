#include "worker/shell/reference/exported_evaluation.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <variant>

#include "worker/shell/torch/graph_arguments.h"
#include "worker/shell/torch/graph_layer.h"

namespace weft {
namespace {

const ExportedSpec& SpecOf(const RunSpec& run) { return std::get<ExportedSpec>(run.model); }

}  // namespace

ExportedEvaluation::ExportedEvaluation(const RunSpec& run, PlainDevice& device)
    : seed_(run.train.seed),
      model_(*SpecOf(run).model->evaluation),
      graph_(
          BuildGraphLayer({SpecOf(run).model->evaluation, SpecOf(run).weights(), SpecOf(run).initial, 0}, 0)),
      device_(device) {}

absl::Status ExportedEvaluation::Load(const Checkpoint& checkpoint) {
  const auto load = [&](const ExportedTensor& tensor, bool trained) {
    const std::vector<float>& values = checkpoint.parameters.at(tensor.name);
    const at::Tensor host = at::empty(tensor.sizes, c10::kFloat);
    std::memcpy(host.mutable_data_ptr<float>(), values.data(), values.size() * sizeof(float));
    absl::StatusOr<at::Tensor> there = device_.ToDevice(host.to(TorchTypeOf(tensor.type)));
    // Parameters require gradients as in PyTorch's module: operations may take another way for trained ones.
    if (there.ok()) parameters_.push_back(there->detach().set_requires_grad(trained));
    return there.status();
  };
  absl::Status status;
  for (const ExportedTensor& p : model_.layers[0].parameters) {
    if (status.ok()) status = load(p, true);
  }
  for (const ExportedStatistic& s : model_.layers[0].statistics) {
    if (status.ok()) status = load({s.name, ElementType::kF32, s.sizes}, false);
  }
  return status;
}

absl::Status ExportedEvaluation::Add(const at::Tensor& fields, Evaluation* result) {
  if (absl::Status s = device_.Prepare(*graph_, fields.size(0)); !s.ok()) return s;
  const absl::StatusOr<at::Tensor> read = device_.ToDevice(fields);
  if (!read.ok()) return read.status();
  MaskKey key;
  key.seed = seed_;
  key.microbatch = batches_++;
  key.math = &device_.math();
  at::Tensor made;
  absl::Status s = device_.Run(Job::Compute(0, 0, 0, JobKind::kForward), [&] {
    made = graph_->Forward(&*read, parameters_.data(), key);
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  const absl::StatusOr<at::Tensor> host = device_.ToHost(made);
  if (!host.ok()) return host.status();
  const double* next = host->const_data_ptr<double>();
  const auto samples = static_cast<double>(fields.size(0));
  for (size_t i = 0; i < model_.figures.size(); ++i) {
    const bool counted = model_.figures[i].counted;
    RunningMean& mean = i == 0 ? result->losses : result->further[model_.figures[i].name];
    mean.Add(counted ? next[0] : next[0] * samples, counted ? next[1] : samples);
    next += counted ? 2 : 1;
  }
  return absl::OkStatus();
}

}  // namespace weft
