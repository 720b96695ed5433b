#include "worker/shell/loop/checkpoint_work.h"

#include <utility>

#include "absl/status/statusor.h"

namespace weft {
namespace {

absl::Status NoFolder() { return absl::FailedPreconditionError("the run has no output folder"); }

}  // namespace

std::function<absl::Status()> SealWork(const SealEffect& seal, SharedFolders folders) {
  return [seal, folders = std::move(folders)]() -> absl::Status {
    if (folders == nullptr) return NoFolder();
    if (!seal.drop && seal.passing) return folders->KeepAside(seal.step);
    if (!seal.drop) return folders->Seal(seal.step, seal.keep, seal.validate);
    folders->Drop(seal.step);
    return absl::AbortedError("it was dropped");
  };
}

Validator::Work ValidationWork(Device& device, std::shared_ptr<const RunSpec> spec, SharedFolders folders,
                               int step) {
  return [&device, spec = std::move(spec), folders = std::move(folders),
          step](const EvaluationProgress& on_progress) -> absl::StatusOr<Evaluation> {
    if (folders == nullptr) return NoFolder();
    absl::StatusOr<Evaluation> result = device.Validate(*spec, folders->KeptAside(step), on_progress);
    folders->DropKeptAside(step);
    return result;
  };
}

}  // namespace weft
