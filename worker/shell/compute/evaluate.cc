#include "worker/shell/compute/evaluate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/run/model_layers.h"
#include "worker/shell/compute/checkpoint_reader.h"
#include "worker/shell/compute/data.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/plain_device.h"
#include "worker/shell/compute/torch_context.h"
#include "worker/shell/compute/torch_layers.h"

namespace weft {
namespace {

constexpr int64_t kSamplesOfBatch = 16;

class TrainedModel {
 public:
  TrainedModel(const RunSpec& run, PlainDevice& device)
      : narrows_(run.precision == Precision::kBFloat16),
        device_(device),
        counts_(CountLayers(run.model)),
        layers_(BuildLayers(run.model)) {}

  absl::Status Load(const ModelSpec& model, const Checkpoint& checkpoint) {
    for (const LayerSpec& layer : DescribeLayers(model)) {
      std::vector<at::Tensor>& parameters = parameters_.emplace_back();
      for (const ParameterSpec& p : layer.parameters) {
        const std::vector<float>& values = checkpoint.parameters.at(absl::StrCat(layer.name, ".", p.name));
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

  // The mean loss, and how many of the highest scores are their targets'.
  absl::Status Evaluate(const at::Tensor& inputs, const at::Tensor& targets, double* loss, int64_t* correct) {
    const absl::StatusOr<at::Tensor> read = device_.ToDevice(inputs), wanted = device_.ToDevice(targets);
    if (!read.ok()) return read.status();
    if (!wanted.ok()) return wanted.status();
    at::Tensor mean, hits;
    absl::Status s = device_.Run(Job::Compute(0, 0, 0, JobKind::kForward), [&] {
      const bool narrow = narrows_ && read->is_floating_point();
      const at::Tensor scores = Scores(narrow ? read->to(c10::kBFloat16) : *read);
      mean = Loss(scores, *wanted);
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

 private:
  // One row of scores a prediction.
  at::Tensor Scores(const at::Tensor& inputs) const {
    MaskKey key;
    key.training = false;
    std::vector<at::Tensor> outputs;
    for (size_t l = 0; l < layers_.size(); ++l) {
      std::vector<at::Tensor> read;
      for (const int from : counts_[l].inputs) read.push_back(outputs[from]);
      if (read.empty()) read.push_back(inputs);
      outputs.push_back(layers_[l]->Forward(read.data(), parameters_[l].data(), key));
    }
    return outputs.back();
  }

  const bool narrows_;
  PlainDevice& device_;
  const std::vector<LayerCount> counts_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::vector<at::Tensor>> parameters_;  // of each layer
};

// Reads samples [first, first + inputs.size(0)).
absl::Status ReadSamples(const Dataset& data, int64_t first, at::Tensor& inputs, at::Tensor& targets) {
  const int64_t samples = inputs.size(0);
  char* const to = static_cast<char*>(inputs.data_ptr());
  const int64_t stride = static_cast<int64_t>(inputs.nbytes()) / samples;
  for (int64_t i = 0; i < samples; ++i) {
    absl::Status s = data.ReadInputs(first + i, to + i * stride);
    if (s.ok()) {
      s = data.ReadTargets(first + i, targets.mutable_data_ptr<int64_t>() + i * data.targets());
    }
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> EvaluateAll(const RunSpec& run, const std::string& folder,
                                       const std::function<bool(const Evaluation&)>& on_progress,
                                       PlainDevice& device) {
  absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
  if (!data.ok()) return data.status();
  absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, run.model);
  if (!checkpoint.ok()) return checkpoint.status();
  at::NoGradGuard no_grad;
  TrainedModel model(run, device);
  if (absl::Status s = model.Load(run.model, *checkpoint); !s.ok()) return s;
  const c10::ScalarType type = (*data)->input_type() == DataType::kInt64 ? c10::kLong : c10::kFloat;
  Evaluation result;
  result.version = checkpoint->version;
  result.all_samples = (*data)->count();
  while (result.samples < result.all_samples) {
    const int64_t samples = std::min(kSamplesOfBatch, result.all_samples - result.samples);
    at::Tensor inputs = at::empty({samples, (*data)->inputs()}, type);
    at::Tensor targets = at::empty({samples * (*data)->targets()}, c10::kLong);
    if (absl::Status s = ReadSamples(**data, result.samples, inputs, targets); !s.ok()) return s;
    double loss = 0;
    int64_t correct = 0;
    if (absl::Status s = model.Evaluate(inputs, targets, &loss, &correct); !s.ok()) return s;
    const int64_t predictions = targets.size(0);
    result.loss_sum += loss * static_cast<double>(predictions);
    result.correct += correct;
    result.predictions += predictions;
    result.samples += samples;
    if (!on_progress(result)) {
      return absl::CancelledError(absl::StrCat("the evaluation was stopped after ", result.samples, " of ",
                                               result.all_samples, " samples"));
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<Evaluation> Evaluate(const RunSpec& run, const std::string& folder,
                                    const std::function<bool(const Evaluation&)>& on_progress,
                                    DeviceBackend* backend) {
  try {
    PrepareProcess();
    PrepareRun(run.precision, run.kernels);
    PrepareThread();
    const absl::StatusOr<std::unique_ptr<PlainDevice>> device = PlainDevice::Create(backend);
    if (!device.ok()) return device.status();
    return EvaluateAll(run, folder, on_progress, **device);
  } catch (const c10::Error& e) {
    return TorchError("evaluation", e.what_without_backtrace());
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
  }
}

}  // namespace weft
