#include "worker/shell/compute/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "worker/shell/compute/checkpoint_reader.h"
#include "worker/shell/compute/data.h"
#include "worker/shell/compute/plain_device.h"
#include "worker/shell/compute/torch_context.h"
#include "worker/shell/compute/torch_layers.h"
#include "worker/shell/compute/trained_model.h"

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

absl::StatusOr<Evaluation> EvaluateAll(const RunSpec& run, const std::string& folder,
                                       const std::function<bool(const Evaluation&)>& on_progress,
                                       PlainDevice& device) {
  absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
  if (!data.ok()) return data.status();
  absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, run.model);
  if (!checkpoint.ok()) return checkpoint.status();
  at::NoGradGuard no_grad;
  TrainedModel model(run, device);
  if (absl::Status s = model.Load(*checkpoint); !s.ok()) return s;
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
    PrepareRun(run);
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
