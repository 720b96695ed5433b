#include "worker/shell/torch/loss_counts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "worker/shell/torch/graph_layer.h"

namespace weft {
namespace {

constexpr size_t kStepsKept = 8;  // more than overlap

std::unique_ptr<const Layer> CountingLayerOf(const RunSpec& run) {
  const auto* exported = std::get_if<ExportedSpec>(&run.model);
  if (exported == nullptr || exported->model->count == nullptr) return nullptr;
  return BuildGraphLayer({exported->model->count, exported->weights(), "", 0}, 0);
}

}  // namespace

LossCounts::LossCounts(const RunSpec& run) : run_(run), counting_(CountingLayerOf(run)) {}

absl::StatusOr<float> LossCounts::DivisorOf(int step) {
  if (counting_ == nullptr) return 1.0f;
  MutexLock lock(mutex_);
  if (const auto found = divisors_.find(step); found != divisors_.end()) return found->second;
  if (absl::Status s = Open(); !s.ok()) return s;
  double all = 0;
  for (int b = 0; b < run_.train.microbatches; ++b) {
    const absl::StatusOr<double> count = CountOf(step, b);
    if (!count.ok()) return count.status();
    all += *count;
  }
  if (!(all > 0) || !std::isfinite(all)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the loss of step %d is a sum over a count of %g; every batch must have something that "
        "counts: look at the data, as labels or a mask",
        step, all));
  }
  if (divisors_.size() >= kStepsKept) divisors_.erase(divisors_.begin());
  return divisors_[step] = static_cast<float>(all / run_.train.microbatches);
}

absl::Status LossCounts::Open() {
  if (fields_ != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Dataset>> fields =
      OpenFields(run_.data, *std::get<ExportedSpec>(run_.model).model->count);
  if (!fields.ok()) return fields.status();
  fields_ = *std::move(fields);
  return absl::OkStatus();
}

// Returns the count of one micro-batch.
absl::StatusOr<double> LossCounts::CountOf(int step, int microbatch) {
  const at::NoGradGuard without_graph;
  const at::Tensor data = at::empty({run_.microbatch_samples(), fields_->inputs()}, c10::kByte);
  if (absl::Status s = fields_->ReadInputs(run_, step, microbatch, data.mutable_data_ptr()); !s.ok())
    return s;
  const at::Tensor count = counting_->Forward(&data, nullptr, MaskKey());
  return count.item<double>();
}

}  // namespace weft
