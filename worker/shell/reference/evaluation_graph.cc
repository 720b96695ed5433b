#include "worker/shell/reference/evaluation_graph.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>
#include <variant>

#include "worker/shell/torch/graph_arguments.h"
#include "worker/shell/torch/graph_layer.h"

namespace weft {
namespace {

const ExportedSpec& SpecOf(const RunSpec& run) { return std::get<ExportedSpec>(run.model); }

}  // namespace

EvaluationGraph::EvaluationGraph(const RunSpec& run, std::shared_ptr<const ExportedModel> graph,
                                 PlainDevice& device)
    : seed_(run.train.seed),
      model_(std::move(graph)),
      graph_(BuildGraphLayer({model_, SpecOf(run).weights(), SpecOf(run).initial, 0}, 0)),
      device_(device) {}

absl::Status EvaluationGraph::Load(const Checkpoint& checkpoint) {
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
  for (const ExportedTensor& p : model_->layers[0].parameters) {
    if (status.ok()) status = load(p, true);
  }
  for (const ExportedStatistic& s : model_->layers[0].statistics) {
    if (status.ok()) status = load({s.name, ElementType::kF32, s.sizes}, false);
  }
  return status;
}

absl::StatusOr<at::Tensor> EvaluationGraph::Run(const at::Tensor& fields) {
  if (absl::Status s = device_.Prepare(*graph_, fields.size(0)); !s.ok()) return s;
  const absl::StatusOr<at::Tensor> read = device_.ToDevice(fields);
  if (!read.ok()) return read.status();
  MaskKey key;
  key.seed = seed_;
  key.microbatch = batches_++;
  key.math = &device_.math();
  key.generator = &device_.generator_lock();
  at::Tensor made;
  absl::Status s = device_.Run(Job::Compute(0, 0, 0, JobKind::kForward), [&] {
    made = graph_->Forward(&*read, parameters_.data(), key);
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  return device_.ToHost(made);
}

}  // namespace weft
