#include "worker/shell/torch/pass_weights.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "worker/shell/torch/job_inputs.h"

namespace weft {

absl::StatusOr<Tensor> PassWeights::Aligned(Tensor fetched) {
  if (absl::Status s = CheckFlat("weights", fetched, held_.layout().elements); !s.ok()) return s;
  absl::StatusOr<Tensor> here = OnDevice(device_, std::move(fetched));
  if (!here.ok() || IsAligned(*here)) return here;
  absl::StatusOr<Tensor> copy = device_.NewFlat(held_.layout().elements, MemoryClass::kWeights);
  if (copy.ok()) device_.math().Copy(copy->data, here->data, here->bytes);
  return copy;
}

// Returns the weights for a job that came without fetched ones.
absl::StatusOr<std::shared_ptr<StageWeights>> PassWeights::Held(int version) const {
  std::shared_ptr<StageWeights> held = held_.holds_whole() ? held_.versions().At(version) : nullptr;
  if (held != nullptr) return held;
  return absl::FailedPreconditionError(absl::StrFormat(
      "the job came without weights, and this rank does not hold version %d of them", version));
}

absl::Status PassWeights::Choose(Tensor fetched, int version, Pass* pass) {
  if (fetched.empty() && held_.layout().elements == 0) {
    pass->weights = held_.spare().Take();  // no parameters: nothing to hold or to fetch
    return absl::OkStatus();
  }
  if (fetched.empty()) {
    absl::StatusOr<std::shared_ptr<StageWeights>> held = Held(version);
    if (!held.ok()) return held.status();
    pass->weights = *held;
    pass->use = StageWeights::Use(*std::move(held));
    pass->fetched = false;
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> aligned = Aligned(std::move(fetched));
  if (!aligned.ok()) return aligned.status();
  pass->weights = held_.spare().Take();
  pass->weights->Bind(*std::move(aligned));
  pass->weights->Changed();
  pass->fetched = true;
  return absl::OkStatus();
}

absl::Status PassWeights::Rebind(Tensor fetched, int version, Pass* pass) {
  if (!pass->fetched) return absl::OkStatus();
  if (fetched.empty()) {
    absl::StatusOr<std::shared_ptr<StageWeights>> held = Held(version);
    if (!held.ok()) return held.status();
    fetched = (*held)->memory();
    fetched.owner = StageWeights::Use(*std::move(held));
  }
  absl::StatusOr<Tensor> aligned = Aligned(std::move(fetched));
  if (!aligned.ok()) return aligned.status();
  pass->weights->Bind(*std::move(aligned));
  pass->weights->Changed();
  return absl::OkStatus();
}

void PassWeights::Unbind(Pass* pass) {
  if (pass->fetched) pass->weights->Unbind();
}

void PassWeights::GiveBack(Pass* pass) {
  if (pass->fetched) held_.spare().Give(std::move(pass->weights));
}

}  // namespace weft
