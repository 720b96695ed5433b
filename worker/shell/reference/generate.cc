#include "worker/shell/reference/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "run/text_model.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/reference/exported_text.h"
#include "worker/shell/reference/trained_model.h"
#include "worker/shell/torch/plain_device.h"
#include "worker/shell/torch/plugins.h"

namespace weft {
namespace {

constexpr int64_t kBytes = 256;

// Returns the scores of what follows the last of some tokens, as many as the context at most.
using ScoresAfter = std::function<absl::StatusOr<std::vector<float>>(const std::vector<int64_t>& tokens)>;

// Returns how many tokens may be chosen, the first ones of the vocabulary.
int64_t TokensOf(const RunSpec& run, const TextModel& text) {
  return ReadsTokenIds(run) ? text.vocabulary : std::min(kBytes, text.vocabulary);
}

absl::Status CheckPrompt(const std::vector<int64_t>& prompt, const TextModel& text) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt has no token; it takes at least one");
  for (const int64_t token : prompt) {
    if (token >= 0 && token < text.vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has token ", token, "; the model's vocabulary has tokens 0 to ", text.vocabulary - 1));
  }
  return absl::OkStatus();
}

// Loads the model; the device outlives the result.
absl::StatusOr<ScoresAfter> LoadModel(const RunSpec& run, const TextModel& text, const Checkpoint& checkpoint,
                                      PlainDevice& device) {
  const auto scores_after = [&](const auto& model) -> absl::StatusOr<ScoresAfter> {
    if (absl::Status s = model->Load(checkpoint); !s.ok()) return s;
    return [model](const std::vector<int64_t>& tokens) { return model->ScoresAfter(tokens); };
  };
  if (text.scores == nullptr) return scores_after(std::make_shared<TrainedModel>(run, device));
  return scores_after(std::make_shared<ExportedText>(run, text, device));
}

absl::Status GenerateAll(const RunSpec& run, const TextModel& text, const std::string& folder,
                         const GenerateRequest& request, const std::function<bool(int64_t token)>& on_token,
                         PlainDevice& device) {
  const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, run.model);
  if (!checkpoint.ok()) return checkpoint.status();
  at::NoGradGuard no_grad;
  const absl::StatusOr<ScoresAfter> scores_after = LoadModel(run, text, *checkpoint, device);
  if (!scores_after.ok()) return scores_after.status();
  TokenSampler sampler(request.sampling);
  const auto context = static_cast<size_t>(text.context);
  const auto choices = static_cast<size_t>(TokensOf(run, text));
  std::vector<int64_t> read = request.prompt;
  for (int i = 0; i < request.tokens; ++i) {
    if (read.size() > context) {
      read.erase(read.begin(), read.end() - static_cast<std::ptrdiff_t>(context));
    }
    const absl::StatusOr<std::vector<float>> scores = (*scores_after)(read);
    if (!scores.ok()) return scores.status();
    const size_t scored = std::min(choices, scores->size());
    const absl::StatusOr<int> next = sampler.Next(absl::MakeConstSpan(*scores).subspan(0, scored));
    if (!next.ok()) return next.status();
    read.push_back(*next);
    if (!on_token(*next)) {
      return absl::CancelledError(absl::StrCat("stopped after ", i + 1, " of ", request.tokens, " tokens"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Generate(const RunSpec& run, const std::string& folder, const GenerateRequest& request,
                      const std::function<bool(int64_t token)>& on_token, DeviceBackend* backend) {
  const absl::StatusOr<TextModel> text = TextModelOf(run.model);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("the model ", text.status().message()));
  if (absl::Status s = CheckPrompt(request.prompt, *text); !s.ok()) return s;
  if (const auto* exported = std::get_if<ExportedSpec>(&run.model)) {
    if (absl::Status s = LoadPlugins(exported->plugins); !s.ok()) return s;
  }
  return OnPlainDevice(run, backend, "generation", [&](PlainDevice& device) {
    return GenerateAll(run, *text, folder, request, on_token, device);
  });
}

}  // namespace weft
