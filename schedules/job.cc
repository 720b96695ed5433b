#include "schedules/job.h"

#include "absl/strings/str_cat.h"

namespace weft {

absl::string_view JobKindName(JobKind kind) {
  constexpr absl::string_view kNames[kJobKinds] = {"forward",         "backward", "backward_input",
                                                   "backward_weight", "reduce",   "update"};
  return kNames[static_cast<int>(kind)];
}

std::optional<JobKind> JobKindOfName(absl::string_view name) {
  for (int kind = 0; kind < kJobKinds; ++kind) {
    if (JobKindName(static_cast<JobKind>(kind)) == name) return static_cast<JobKind>(kind);
  }
  return std::nullopt;
}

absl::string_view TensorKindName(TensorKind kind) {
  constexpr absl::string_view kNames[kTensorKinds] = {"order",   "activation", "input_gradient",
                                                      "weights", "gradient",   "gradient_sum",
                                                      "norm",    "state",      "copy"};
  return kNames[static_cast<int>(kind)];
}

std::string Describe(const Job& job) {
  std::string s = absl::StrCat(JobKindName(job.kind), " (step ", job.step, ", stage ", job.stage);
  if (HasMicrobatch(job.kind)) {
    absl::StrAppend(&s, ", micro-batch ", job.microbatch, ")");
  } else {
    absl::StrAppend(&s, ", member ", job.member, ")");
  }
  return s;
}

}  // namespace weft
