#include "coordinator/record/kept_checkpoint.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "run/run_spec.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

fs::path Resolved(const fs::path& path) {
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(path, error) / "";
  return resolved.parent_path();  // without a slash at its end
}

}  // namespace

PlannedSpec WithKeptCheckpoint(const std::string& output, PlannedSpec submitted) {
  const RunPlan& plan = *submitted.plan;
  if (output.empty() || plan.spec == nullptr || plan.resumed_spec == nullptr) return submitted;
  const ResumeSpec& resume = plan.spec->resume;
  const fs::path own = fs::absolute(output).lexically_normal() / "checkpoint";
  if (resume.checkpoint.empty() || Resolved(resume.checkpoint) != Resolved(own)) return submitted;
  const std::string kept = (own.parent_path() / absl::StrCat("checkpoint-", resume.step)).string();
  auto spec = std::make_shared<RunSpec>(*plan.spec);
  spec->resume.checkpoint = kept;
  auto changed = std::make_shared<RunPlan>(plan);
  changed->spec = spec;
  if (plan.fast != nullptr) {
    auto fast = std::make_shared<RunPlan>(*plan.fast);
    fast->spec = spec;
    changed->fast = std::move(fast);
  }
  return {changed, plan.resumed_spec(kept, resume.step)};
}

}  // namespace weft
