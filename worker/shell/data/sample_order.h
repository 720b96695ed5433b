// Says which sample a run trains on when: the order of the data.
//
// Sample i of micro-batch b in step t is draw number j = (t * B + b) * n + i of the run, n the size of a
// micro-batch. Draw j is of epoch j / count, and at place p = j mod count in it. `sequential`: it is sample
// number p. `shuffled`: it is number Shuffled(p) of a permutation of [0, count) that seed and epoch choose.
//
// The permutation is the swap-or-not shuffle (V. T. Hoang, B. Morris, P. Rogaway, "An Enciphering Scheme
// Based on a Card Shuffle", CRYPTO 2012, arXiv 1208.1176): kRounds rounds, each of which exchanges some pairs
// of numbers. A round pairs x with (K - x) mod count, and a bit of a hash of the larger of the two says
// whether they change places, so each round is a permutation for every count. So a place's sample is computed
// from its number alone, in the same time for every count and without memory, in any process. With h(a, b) =
// M(a + G * (b + 1)), all modulo 2^64, where G = 0x9e3779b97f4a7c15 and M is the output function of
// SplitMix64 (splitmix64.h):
//
// key = h(h(seed, 1), epoch)
// for r in 0 .. kRounds - 1:
// k = h(key, r);  K = k mod count;  y = (K - x) mod count;  if h(k, max(x, y)) is odd: x = y
//
// Pure.
#ifndef WEFT_WORKER_SHELL_DATA_SAMPLE_ORDER_H_
#define WEFT_WORKER_SHELL_DATA_SAMPLE_ORDER_H_

#include <cstdint>

#include "run/run_spec.h"

namespace weft {

struct Sample {
  int64_t number = 0;  // below the count
  int64_t epoch = 0;   // how often all samples have been trained on before
  friend bool operator==(const Sample&, const Sample&) = default;
};

// Returns sample i of a micro-batch, among `count`.
Sample SampleOf(const RunSpec& run, int step, int microbatch, int i, int64_t count);

// Returns the number at place `place` of the permutation. Requires 0 <= place < count.
int64_t ShuffledSample(uint64_t seed, int64_t epoch, int64_t place, int64_t count);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_SAMPLE_ORDER_H_
