// Words the comparison of two runs: for a person, and as JSON.
#ifndef WEFT_CLIENT_DIFF_DIFF_REPORT_H_
#define WEFT_CLIENT_DIFF_DIFF_REPORT_H_

#include <string>

#include "client/diff/run_diff.h"
#include "nlohmann/json_fwd.hpp"

namespace weft {

// The runs as the person named them.
struct DiffNames {
  std::string a, b;
};

// Returns what it means that these results of a job differ while all that they follow from is equal.
std::string MeaningOf(const RunDiff::Root& root, const DiffNames& names);

// `width`: columns at which sentences are broken.
std::string DiffText(const RunDiff& diff, const DiffNames& names, int width = 100);
nlohmann::ordered_json DiffJson(const RunDiff& diff, const DiffNames& names);

}  // namespace weft

#endif  // WEFT_CLIENT_DIFF_DIFF_REPORT_H_
