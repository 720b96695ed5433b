#include "worker/shell/reference/trained_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/cross_entropy.h"

namespace weft {

TrainedModel::TrainedModel(const RunSpec& run, PlainDevice& device)
    : model_(run.model),
      narrows_(run.precision == Precision::kBFloat16),
      device_(device),
      counts_(CountLayers(run.model)),
      layers_(BuildLayers(run.model)) {}

absl::Status TrainedModel::Load(const Checkpoint& checkpoint) {
  for (const LayerSpec& layer : DescribeLayers(model_)) {
    std::vector<at::Tensor>& parameters = parameters_.emplace_back();
    for (const ParameterSpec& p : layer.parameters) {
      const std::vector<float>& values = checkpoint.parameters.at(NameInModel(layer.name, p));
      at::Tensor host = at::empty(p.size, c10::kFloat);
      std::memcpy(host.mutable_data_ptr<float>(), values.data(), values.size() * sizeof(float));
      if (narrows_ && !p.is_wide()) host = host.to(c10::kBFloat16);
      absl::StatusOr<at::Tensor> there = device_.ToDevice(host);
      if (!there.ok()) return there.status();
      parameters.push_back(*std::move(there));
    }
  }
  return absl::OkStatus();
}

absl::Status TrainedModel::Evaluate(const at::Tensor& inputs, const at::Tensor& targets, double* loss,
                                    int64_t* correct) {
  const absl::StatusOr<at::Tensor> read = device_.ToDevice(inputs), wanted = device_.ToDevice(targets);
  if (!read.ok()) return read.status();
  if (!wanted.ok()) return wanted.status();
  at::Tensor mean, hits;
  absl::Status s = device_.Run(Job::Compute(0, 0, 0, JobKind::kForward), [&] {
    const bool narrow = narrows_ && read->is_floating_point();
    const at::Tensor scores = Scores(narrow ? read->to(c10::kBFloat16) : *read);
    mean = Loss(scores, *wanted, nullptr);
    hits = scores.argmax(1).eq(*wanted).sum();
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  const absl::StatusOr<at::Tensor> made = device_.ToHost(mean), counted = device_.ToHost(hits);
  if (!made.ok()) return made.status();
  if (!counted.ok()) return counted.status();
  *loss = static_cast<double>(made->item<float>());
  *correct = counted->item<int64_t>();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> TrainedModel::ScoresAfter(const std::vector<int64_t>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  at::Tensor host = at::empty({1, count}, c10::kLong);
  std::memcpy(host.mutable_data_ptr<int64_t>(), tokens.data(), tokens.size() * sizeof(int64_t));
  const absl::StatusOr<at::Tensor> read = device_.ToDevice(host);
  if (!read.ok()) return read.status();
  at::Tensor last;
  absl::Status s = device_.Run(Job::Compute(0, 0, 0, JobKind::kForward), [&] {
    last = Scores(*read).select(0, count - 1).to(c10::kFloat);
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  const absl::StatusOr<at::Tensor> made = device_.ToHost(last);
  if (!made.ok()) return made.status();
  const float* const scores = made->const_data_ptr<float>();
  return std::vector<float>(scores, scores + made->numel());
}

// Returns one row of scores for each prediction. A gpt may be given fewer tokens than its context has: the
// first positions are theirs.
at::Tensor TrainedModel::Scores(const at::Tensor& inputs) const {
  MaskKey key;
  key.training = false;
  const auto* const gpt = std::get_if<GptSpec>(&model_);
  std::vector<at::Tensor> outputs;
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::vector<at::Tensor> read;
    for (const int from : counts_[l].inputs) read.push_back(outputs[from]);
    if (counts_[l].reads_data) read.push_back(inputs);
    std::vector<at::Tensor> parameters = parameters_[l];
    if (gpt != nullptr && static_cast<int>(l) == gpt->embedding_layer())
      parameters.back() = parameters.back().narrow(0, 0, inputs.size(1));
    outputs.push_back(layers_[l]->Forward(read.data(), parameters.data(), key));
  }
  return outputs.back();
}

}  // namespace weft
