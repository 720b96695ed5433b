// Chooses the next token from a language model's scores: the likeliest, or one drawn with a seed.
//
// The same scores, options and seed choose the same tokens on every machine. Pure but for the state of its
// generator. One thread.
#ifndef WEFT_WORKER_SHELL_REFERENCE_TOKEN_SAMPLER_H_
#define WEFT_WORKER_SHELL_REFERENCE_TOKEN_SAMPLER_H_

#include <cstdint>
#include <random>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace weft {

struct SamplingOptions {
  double temperature = 0.8;  // divides scores before the draw; 0: the highest score, without a draw
  int top_k = 0;             // number of the highest scores to draw from; 0: all
  uint64_t seed = 1;
};

class TokenSampler {
 public:
  // Requires temperature >= 0 and finite, top_k >= 0.
  explicit TokenSampler(const SamplingOptions& options) : options_(options), generator_(options.seed) {}

  // Returns the next token, in [0, scores.size()); of equal scores the smallest comes first.
  // FailedPrecondition if a score is not a finite number.
  absl::StatusOr<int> Next(absl::Span<const float> scores);

 private:
  const SamplingOptions options_;
  std::mt19937_64 generator_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_TOKEN_SAMPLER_H_
