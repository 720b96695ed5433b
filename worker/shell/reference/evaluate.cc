#include "worker/shell/reference/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/data/data.h"
#include "worker/shell/reference/exported_evaluation.h"
#include "worker/shell/reference/trained_model.h"
#include "worker/shell/torch/plain_device.h"
#include "worker/shell/torch/plugins.h"

namespace weft {
namespace {

constexpr int64_t kSamplesOfBatch = 16;

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

c10::ScalarType TorchTypeOf(DataType type) {
  return type == DataType::kInt64 ? c10::kLong : type == DataType::kUInt8 ? c10::kByte : c10::kFloat;
}

using Batch = std::function<absl::Status(const at::Tensor& inputs, const at::Tensor& targets, Evaluation*)>;

// Calls `batch` with the result's samples, so many at once.
absl::StatusOr<Evaluation> InBatches(const Dataset& data, Evaluation result, int64_t most,
                                     const Batch& batch_of, const EvaluationProgress& on_progress) {
  const c10::ScalarType type = TorchTypeOf(data.input_type());
  while (result.samples < result.all_samples) {
    const int64_t batch = std::min(most, result.all_samples - result.samples);
    at::Tensor inputs = at::empty({batch, data.inputs()}, type);
    at::Tensor targets = at::empty({batch * data.targets()}, c10::kLong);
    if (absl::Status s = ReadSamples(data, result.samples, inputs, targets); !s.ok()) return s;
    if (absl::Status s = batch_of(inputs, targets, &result); !s.ok()) return s;
    result.samples += batch;
    if (!on_progress(result)) {
      return absl::CancelledError(absl::StrCat("the evaluation was stopped after ", result.samples, " of ",
                                               result.all_samples, " samples"));
    }
  }
  return result;
}

absl::StatusOr<Evaluation> EvaluateExported(const RunSpec& run, const Dataset& data,
                                            const Checkpoint& checkpoint, Evaluation begin,
                                            const EvaluationProgress& on_progress, PlainDevice& device) {
  if (absl::Status s = LoadPlugins(std::get<ExportedSpec>(run.model).plugins); !s.ok()) return s;
  ExportedEvaluation model(run, device);
  if (absl::Status s = model.Load(checkpoint); !s.ok()) return s;
  absl::StatusOr<Evaluation> result = InBatches(
      data, std::move(begin), run.microbatch_samples(),
      [&](const at::Tensor& inputs, const at::Tensor&, Evaluation* sums) { return model.Add(inputs, sums); },
      on_progress);
  if (result.ok() && result->losses.count == 0) {
    return absl::InvalidArgumentError(
        "the loss is a sum over a count of 0; the data must have something that counts: look at labels or a "
        "mask");
  }
  return result;
}

absl::StatusOr<Evaluation> EvaluateBuiltIn(const RunSpec& run, const Dataset& data,
                                           const Checkpoint& checkpoint, Evaluation begin,
                                           const EvaluationProgress& on_progress, PlainDevice& device) {
  TrainedModel model(run, device);
  if (absl::Status s = model.Load(checkpoint); !s.ok()) return s;
  const Batch batch = [&](const at::Tensor& inputs, const at::Tensor& targets, Evaluation* sums) {
    double loss = 0;
    int64_t correct = 0;
    if (absl::Status s = model.Evaluate(inputs, targets, &loss, &correct); !s.ok()) return s;
    const int64_t predictions = targets.size(0);
    sums->losses.Add(loss * static_cast<double>(predictions), static_cast<double>(predictions));
    sums->correct += correct;
    sums->predictions += predictions;
    return absl::OkStatus();
  };
  return InBatches(data, std::move(begin), kSamplesOfBatch, batch, on_progress);
}

// The first `samples` of the data, or all for 0.
absl::StatusOr<Evaluation> EvaluateOn(const RunSpec& run, const Dataset& data, const Checkpoint& checkpoint,
                                      int64_t samples, const EvaluationProgress& on_progress,
                                      PlainDevice& device) {
  at::NoGradGuard no_grad;
  Evaluation begin;
  begin.version = checkpoint.version;
  begin.all_samples = samples > 0 ? std::min(samples, data.count()) : data.count();
  const bool exported = std::holds_alternative<ExportedSpec>(run.model);
  return (exported ? EvaluateExported : EvaluateBuiltIn)(run, data, checkpoint, std::move(begin), on_progress,
                                                         device);
}

}  // namespace

absl::StatusOr<Evaluation> Evaluate(const RunSpec& run, const std::string& folder,
                                    const EvaluationProgress& on_progress, DeviceBackend* backend,
                                    int64_t samples) {
  if (absl::Status can = CheckEvaluable(run.model); !can.ok()) return can;
  absl::StatusOr<Evaluation> result = Evaluation();
  const absl::Status ended = OnPlainDevice(run, backend, "evaluation", [&](PlainDevice& device) {
    const absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
    if (!data.ok()) return data.status();
    const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, run.model);
    if (!checkpoint.ok()) return checkpoint.status();
    result = EvaluateOn(run, **data, *checkpoint, samples, on_progress, device);
    return result.status();
  });
  if (!ended.ok()) return ended;
  return result;
}

absl::StatusOr<Evaluation> EvaluateHeldOut(const RunSpec& run, const Checkpoint& checkpoint,
                                           const EvaluationProgress& on_progress) {
  absl::StatusOr<Evaluation> result = Evaluation();
  const absl::Status ended = OnPreparedDevice(nullptr, "validation", [&](PlainDevice& device) {
    const RunSpec held_out = ValidationRun(run);
    const absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(held_out);
    if (!data.ok()) return data.status();
    result = EvaluateOn(held_out, **data, checkpoint, run.validate.samples, on_progress, device);
    return result.status();
  });
  if (!ended.ok()) return ended;
  return result;
}

}  // namespace weft
