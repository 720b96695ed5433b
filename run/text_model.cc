#include "run/text_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr const char* kCrossEntropy = "aten::cross_entropy_loss";

// Calls `f` with the number of each value that the operation reads.
template <typename F>
void ForEachRead(const GraphOperation& operation, F f) {
  for (const GraphArgument& argument : operation.arguments) {
    if (const auto* value = std::get_if<GraphValue>(&argument)) f(value->number);
    const auto* values = std::get_if<GraphValues>(&argument);
    if (values == nullptr) continue;
    for (const int number : values->numbers) {
      if (number >= 0) f(number);
    }
  }
}

// Returns the layer with another output, and only the operations that this depends on. `read` says which
// values these read.
ExportedLayer WithOutput(const ExportedLayer& layer, int output, std::vector<bool>* read) {
  ExportedLayer made = layer;
  made.output = output;
  made.operations.clear();
  read->assign(layer.values, false);
  (*read)[output] = true;
  for (auto operation = layer.operations.rbegin(); operation != layer.operations.rend(); ++operation) {
    const std::vector<int>& results = operation->results;
    if (std::none_of(results.begin(), results.end(), [&](int r) { return r >= 0 && (*read)[r]; })) continue;
    ForEachRead(*operation, [&](int number) { (*read)[number] = true; });
    made.operations.push_back(*operation);
  }
  std::reverse(made.operations.begin(), made.operations.end());
  return made;
}

// Returns the value that the only cross entropy compares with the labels; nothing where there is not one.
std::optional<int> ScoresOf(const ExportedLayer& layer) {
  std::optional<int> scores;
  for (const GraphOperation& operation : layer.operations) {
    if (operation.name != kCrossEntropy) continue;
    const auto* compared =
        operation.arguments.empty() ? nullptr : std::get_if<GraphValue>(&operation.arguments[0]);
    if (compared == nullptr || scores.has_value()) return std::nullopt;
    scores = compared->number;
  }
  return scores;
}

absl::StatusOr<TextModel> ExportedTextModel(const ExportedModel& model) {
  if (model.evaluation == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("has no graph of its evaluation, and so no scores: ", model.no_evaluation));
  }
  const ExportedLayer& evaluation = model.evaluation->layers.front();
  const std::optional<int> scores = ScoresOf(evaluation);
  if (!scores.has_value()) {
    return absl::InvalidArgumentError(
        "writes no text: its loss in evaluation mode is not one cross entropy of scores; export it with a "
        "loss "
        "that calls torch.nn.functional.cross_entropy once");
  }
  std::vector<bool> read;
  auto scoring = std::make_shared<ExportedModel>(*model.evaluation);
  scoring->layers = {WithOutput(evaluation, *scores, &read)};
  TextModel text;
  std::vector<std::string> names;  // of the fields that the scores depend on
  for (size_t i = 0; i < evaluation.fields.size(); ++i) {
    if (!read[i]) continue;
    text.field = evaluation.fields[i];
    names.push_back(model.fields[text.field].name);
  }
  const ExportedField& tokens = model.fields[text.field];
  const std::optional<int64_t> vocabulary = EmbeddingRows(*scoring);
  if (names.size() != 1 || tokens.type != ElementType::kI64 || tokens.sizes.size() != 1 || !vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "writes no text: its scores depend on ", names.empty() ? "no field" : absl::StrJoin(names, " and "),
        ", and not on one field of tokens that an embedding looks up; export it without the others, as an "
        "attention mask"));
  }
  text.context = tokens.sizes[0];
  text.vocabulary = *vocabulary;
  text.scores = std::move(scoring);
  return text;
}

}  // namespace

absl::StatusOr<TextModel> TextModelOf(const ModelSpec& model) {
  if (const auto* gpt = std::get_if<GptSpec>(&model))
    return TextModel{gpt->context, gpt->vocabulary, nullptr};
  if (const auto* exported = std::get_if<ExportedSpec>(&model)) return ExportedTextModel(*exported->model);
  return absl::InvalidArgumentError(
      absl::StrCat("is ", ModelName(model), "; only a gpt, or an exported language model, writes text"));
}

int64_t TokensOfSample(const RunSpec& run) {
  if (!std::holds_alternative<TextData>(run.data.source)) return 0;
  if (const auto* exported = std::get_if<ExportedSpec>(&run.model)) {
    const std::vector<ExportedField>& fields = exported->model->fields;
    return fields.empty() || fields[0].sizes.empty() ? 0 : fields[0].sizes[0];
  }
  const auto* gpt = std::get_if<GptSpec>(&run.model);
  return gpt == nullptr ? 0 : gpt->context;
}

bool ReadsTokenIds(const RunSpec& run) {
  const auto* text = std::get_if<TextData>(&run.data.source);
  return text == nullptr ? std::holds_alternative<ExportedSpec>(run.model)
                         : text->tokens != TextData::Tokens::kBytes;
}

}  // namespace weft
