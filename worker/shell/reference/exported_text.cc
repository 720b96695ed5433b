#include "worker/shell/reference/exported_text.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace weft {

ExportedText::ExportedText(const RunSpec& run, const TextModel& text, PlainDevice& device)
    : graph_(run, text.scores, device), field_(text.scores->fields[text.field]) {}

absl::StatusOr<std::vector<float>> ExportedText::ScoresAfter(const std::vector<int64_t>& tokens) {
  absl::StatusOr<std::vector<float>> scores = ScoresBehind(tokens, 0);
  const bool whole = static_cast<int64_t>(tokens.size()) == field_.sizes[0];
  if (!scores.ok() || whole || std::exchange(checked_, true)) return scores;
  const absl::StatusOr<std::vector<float>> others = ScoresBehind(tokens, 1);
  if (!others.ok() || *others == *scores) return scores;
  return absl::FailedPreconditionError(
      "the model's scores behind a token depend on tokens that come later; only a causal model writes text");
}

// Returns the scores behind the last of the tokens, where others are filled in behind them. A model whose
// scores end one token before its context, as the last has no label, reads one token less.
absl::StatusOr<std::vector<float>> ExportedText::ScoresBehind(const std::vector<int64_t>& tokens,
                                                              int64_t filling) {
  const absl::StatusOr<at::Tensor> all = AllScores(tokens, filling);
  if (!all.ok()) return all.status();
  const auto count = static_cast<int64_t>(tokens.size()), context = field_.sizes[0];
  if (all->dim() != 2 || all->size(0) > context || all->size(0) < context - 1) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the scores that the model's loss compares are no rows, one for each of its %d tokens; "
        "flatten them, as in cross_entropy(scores.flatten(0, 1), labels.flatten())",
        context));
  }
  if (count > all->size(0)) return ScoresBehind({tokens.begin() + 1, tokens.end()}, filling);
  const at::Tensor row = all->select(0, count - 1).to(c10::kFloat).contiguous();
  return std::vector<float>(row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel());
}

absl::StatusOr<at::Tensor> ExportedText::AllScores(const std::vector<int64_t>& tokens, int64_t filling) {
  std::vector<int64_t> filled = tokens;
  filled.resize(static_cast<size_t>(field_.sizes[0]), filling);
  const at::Tensor sample = at::zeros({1, graph_.model().sample_bytes}, c10::kByte);
  std::memcpy(sample.mutable_data_ptr<uint8_t>() + field_.begin, filled.data(),
              filled.size() * sizeof(int64_t));
  return graph_.Run(sample);
}

}  // namespace weft
