#include "worker/core/tensor_key.h"

#include "absl/strings/str_cat.h"

namespace weft {

std::string Describe(const TensorKey& key) {
  std::string s = absl::StrCat(TensorKindName(key.kind), " of step ", key.step, ", stage ", key.stage);
  if (key.microbatch >= 0) absl::StrAppend(&s, ", micro-batch ", key.microbatch);
  if (key.kind == TensorKind::kWeights) absl::StrAppend(&s, ", version ", key.version);
  if (key.kind == TensorKind::kGradient || key.kind == TensorKind::kGradientSum) {
    absl::StrAppend(&s, ", part ", key.part);
  }
  absl::StrAppend(&s, ", from rank ", key.producer, " for rank ", key.consumer);
  return s;
}

}  // namespace weft
