#include "worker/shell/reference/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/reference/trained_model.h"
#include "worker/shell/torch/plain_device.h"

namespace weft {
namespace {

constexpr int kBytes = 256;

// Returns how many tokens may be chosen, the first ones of the vocabulary.
int TokensOf(const RunSpec& run, const GptSpec& gpt) {
  const auto* text = std::get_if<TextData>(&run.data.source);
  const bool bytes = text == nullptr || text->tokens == TextData::Tokens::kBytes;
  return bytes ? std::min(kBytes, gpt.vocabulary) : gpt.vocabulary;
}

absl::Status CheckPrompt(const std::vector<int64_t>& prompt, const GptSpec& gpt) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt has no token; it takes at least one");
  for (const int64_t token : prompt) {
    if (token >= 0 && token < gpt.vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has token ", token, "; the model's vocabulary has tokens 0 to ", gpt.vocabulary - 1));
  }
  return absl::OkStatus();
}

absl::Status GenerateAll(const RunSpec& run, const std::string& folder, const GenerateRequest& request,
                         const std::function<bool(int64_t token)>& on_token, PlainDevice& device) {
  const auto& gpt = std::get<GptSpec>(run.model);
  const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, run.model);
  if (!checkpoint.ok()) return checkpoint.status();
  at::NoGradGuard no_grad;
  TrainedModel model(run, device);
  if (absl::Status s = model.Load(*checkpoint); !s.ok()) return s;
  TokenSampler sampler(request.sampling);
  const auto context = static_cast<size_t>(gpt.context);
  const auto choices = static_cast<size_t>(TokensOf(run, gpt));
  std::vector<int64_t> read = request.prompt;
  for (int i = 0; i < request.tokens; ++i) {
    if (read.size() > context) {
      read.erase(read.begin(), read.end() - static_cast<std::ptrdiff_t>(context));
    }
    const absl::StatusOr<std::vector<float>> scores = model.ScoresAfter(read);
    if (!scores.ok()) return scores.status();
    const absl::StatusOr<int> next = sampler.Next(absl::MakeConstSpan(*scores).subspan(0, choices));
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
  const auto* gpt = std::get_if<GptSpec>(&run.model);
  if (gpt == nullptr) return absl::InvalidArgumentError("the model is not a gpt; only a gpt writes text");
  if (absl::Status s = CheckPrompt(request.prompt, *gpt); !s.ok()) return s;
  return OnPlainDevice(run, backend, "generation", [&](PlainDevice& device) {
    return GenerateAll(run, folder, request, on_token, device);
  });
}

}  // namespace weft
