#include "worker/shell/reference/exported_text.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace weft {
namespace {

// Returns true if the scores differ where both are numbers. Scores of a model that diverged are none, and say
// nothing of what they depend on.
bool Differ(const std::vector<float>& a, const std::vector<float>& b) {
  const auto differ = [](float x, float y) { return std::isfinite(x) && std::isfinite(y) && x != y; };
  return !std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](float x, float y) { return !differ(x, y); });
}

}  // namespace

ExportedText::ExportedText(const RunSpec& run, const TextModel& text, PlainDevice& device)
    : graph_(run, text.scores, device), field_(text.scores->fields[text.field]), rows_(field_.sizes[0]) {}

absl::StatusOr<std::vector<float>> ExportedText::ScoresAfter(const std::vector<int64_t>& tokens) {
  if (!checked_) {
    if (absl::Status s = CheckCausal(tokens); !s.ok()) return s;
    checked_ = true;
  }
  return ScoresBehind(tokens, 0);
}

// Makes sure that two fillings behind the tokens give the same scores. Where the tokens leave no room for a
// filling, one takes the place of the last.
absl::Status ExportedText::CheckCausal(std::vector<int64_t> tokens) {
  if (static_cast<int64_t>(tokens.size()) == field_.sizes[0]) tokens.pop_back();
  if (tokens.empty()) return absl::OkStatus();  // the model reads one token
  const absl::StatusOr<std::vector<float>> scores = ScoresBehind(tokens, 0);
  if (!scores.ok()) return scores.status();
  const absl::StatusOr<std::vector<float>> others = ScoresBehind(tokens, 1);
  if (!others.ok()) return others.status();
  if (!Differ(*scores, *others)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the model's scores behind a token depend on tokens that come later; only a causal model writes text");
}

// Returns the scores behind the last of the tokens, where others are filled in behind them. A model whose
// scores end one token before its context, as the last has no label, reads one token less.
absl::StatusOr<std::vector<float>> ExportedText::ScoresBehind(const std::vector<int64_t>& tokens,
                                                              int64_t filling) {
  const int64_t count = std::min(static_cast<int64_t>(tokens.size()), rows_), context = field_.sizes[0];
  const absl::StatusOr<at::Tensor> all = AllScores({tokens.end() - count, tokens.end()}, filling);
  if (!all.ok()) return all.status();
  if (all->dim() != 2 || all->size(0) > context || all->size(0) < std::max<int64_t>(context - 1, 1)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the scores that the model's loss compares are no rows, one for each of its %d tokens; "
        "flatten them, as in cross_entropy(scores.flatten(0, 1), labels.flatten())",
        context));
  }
  rows_ = all->size(0);
  if (count > rows_) return ScoresBehind(tokens, filling);
  const at::Tensor row = all->select(0, count - 1).to(c10::kFloat).contiguous();
  return std::vector<float>(row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel());
}

absl::StatusOr<at::Tensor> ExportedText::AllScores(std::vector<int64_t> tokens, int64_t filling) {
  tokens.resize(static_cast<size_t>(field_.sizes[0]), filling);
  const at::Tensor sample = at::zeros({1, graph_.model().sample_bytes}, c10::kByte);
  std::memcpy(sample.mutable_data_ptr<uint8_t>() + field_.begin, tokens.data(),
              tokens.size() * sizeof(int64_t));
  return graph_.Run(sample);
}

}  // namespace weft
