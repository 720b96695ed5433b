#include "worker/shell/reference/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {

absl::StatusOr<int> TokenSampler::Next(absl::Span<const float> scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) {
      return absl::FailedPreconditionError(
          absl::StrCat("the model's score of token ", i,
                       " is not a finite number: the checkpoint's weights are damaged, "
                       "or its training diverged"));
    }
  }
  std::vector<int> tokens(scores.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto higher = [&](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; };
  if (options_.temperature == 0) return *std::min_element(tokens.begin(), tokens.end(), higher);
  std::sort(tokens.begin(), tokens.end(), higher);
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < tokens.size())
    tokens.resize(options_.top_k);
  // The exponents are relative to the highest score, so that nothing overflows.
  const double highest = scores[tokens[0]];
  std::vector<double> sums;
  double sum = 0;
  for (const int token : tokens) {
    sum += std::exp((scores[token] - highest) / options_.temperature);
    sums.push_back(sum);
  }
  // 53 bits make a double in [0, 1); the standard library's distributions differ from one to another.
  const double drawn = std::ldexp(static_cast<double>(generator_() >> 11), -53) * sum;
  const auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  return tokens[std::min<size_t>(found - sums.begin(), tokens.size() - 1)];
}

}  // namespace weft
