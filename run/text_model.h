// Says what a model has to do with text: how much of it a sample has, and whether the model writes text,
// which is whether it has scores of what follows each token.
//
// A built-in gpt does. An exported model does if its loss in evaluation mode is one cross entropy: what that
// compares are the scores, a row for each token, and the part of the graph that makes them depends on one
// field of tokens alone. So a model that was exported to be trained needs nothing more to write. The
// writer checks that no token's scores depend on later tokens (worker/shell/reference/exported_text.h).
// Pure.
#ifndef WEFT_RUN_TEXT_MODEL_H_
#define WEFT_RUN_TEXT_MODEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "run/model_spec.h"
#include "run/run_spec.h"

namespace weft {

struct TextModel {
  int64_t context = 0;     // the most tokens that it reads at once
  int64_t vocabulary = 0;  // tokens that it knows, from 0
  // The evaluation of an exported model, with the scores as its output, and the number of the tokens' field.
  // Null for a gpt.
  std::shared_ptr<const ExportedModel> scores;
  int field = 0;
};

// Returns InvalidArgument that says what the model lacks, as in "is mlp; only ..", to go behind "the model of
// NAME".
absl::StatusOr<TextModel> TextModelOf(const ModelSpec& model);

// Returns how many tokens a sample of the run has; 0 if it does not learn from a text.
int64_t TokensOfSample(const RunSpec& run);

// Returns true if the run's data are numbers of tokens; false for bytes of a text.
bool ReadsTokenIds(const RunSpec& run);

}  // namespace weft

#endif  // WEFT_RUN_TEXT_MODEL_H_
