#include "worker/shell/reference/exported_evaluation.h"

#include <variant>

namespace weft {

ExportedEvaluation::ExportedEvaluation(const RunSpec& run, PlainDevice& device)
    : graph_(run, std::get<ExportedSpec>(run.model).model->evaluation, device) {}

absl::Status ExportedEvaluation::Add(const at::Tensor& fields, Evaluation* result) {
  const absl::StatusOr<at::Tensor> made = graph_.Run(fields);
  if (!made.ok()) return made.status();
  const double* next = made->const_data_ptr<double>();
  const auto samples = static_cast<double>(fields.size(0));
  for (size_t i = 0; i < graph_.model().figures.size(); ++i) {
    const bool counted = graph_.model().figures[i].counted;
    RunningMean& mean = i == 0 ? result->losses : result->further[graph_.model().figures[i].name];
    mean.Add(counted ? next[0] : next[0] * samples, counted ? next[1] : samples);
    next += counted ? 2 : 1;
  }
  return absl::OkStatus();
}

}  // namespace weft
