// Says which parameters' weights decay: all, except those whose names the optimizer's `no_decay` patterns
// fit.
//
// A name is that in the model, as checkpoints have it behind the stage: `block0.norm1.weight`. In a pattern
// `*` stands for any letters, also dots, `?` for one, `[ab]` for one of these. Pure.
#ifndef WEFT_RUN_WEIGHT_DECAY_H_
#define WEFT_RUN_WEIGHT_DECAY_H_

#include <string>
#include <vector>

#include "run/file_section.h"
#include "run/run_spec.h"

namespace weft {

// Returns the patterns of parameters that do not decay.
const std::vector<std::string>& NoDecayOf(const OptimizerSpec& optimizer);

bool FitsAny(const std::string& name, const std::vector<std::string>& patterns);

// Reads `no_decay`, a list of patterns, or one. Fails for a pattern that fits no parameter of the model.
std::vector<std::string> ReadNoDecay(FileSection& optimizer, const ModelSpec& model);

}  // namespace weft

#endif  // WEFT_RUN_WEIGHT_DECAY_H_
