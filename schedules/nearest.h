// Finds the word that a user most likely meant in the place of an unknown one, for messages. Pure.
#ifndef WEFT_SCHEDULES_NEAREST_H_
#define WEFT_SCHEDULES_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// Returns the entry of `candidates` that `word` is most likely meant to be: the fewest edits (a change, a
// letter more or less, two that changed places), at most a third of the longer word's length or what follows
// `word` in it; "" if none is that near.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

// Returns `; did you mean "1f1b"?`, or nothing where no candidate is near.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft

#endif  // WEFT_SCHEDULES_NEAREST_H_
