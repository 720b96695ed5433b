// Makes the chains on which searches for patterns are measured.
#ifndef WEFT_TESTS_BENCH_RANDOM_CHAIN_H_
#define WEFT_TESTS_BENCH_RANDOM_CHAIN_H_

#include <cstdint>

#include "planner/chain.h"

namespace weft {

// Draws whole numbers; the same ones on every machine.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  int operator()(int from, int to) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state_ >> 33) % (to - from + 1));
  }

 private:
  uint64_t state_;
};

struct PlacedChain {
  PlannedChain chain;
  Placement placement;
};

// Returns layers of 5 to 15 ticks forward, twice that backward, with transfers of 1 to 4 ticks: `stages` for
// each of the ranks, along the ranks and back (`folded`), or anywhere.
inline PlacedChain RandomChain(int ranks, int stages, bool folded, uint64_t seed = 90) {
  Draw draw(seed);
  PlacedChain made;
  made.chain.ranks = ranks;
  for (int l = 0; l < ranks * stages; ++l) {
    const int forward = draw(5, 15);
    ChainLayer layer;
    layer.forward = forward;
    layer.backward = 2 * forward;
    layer.kept = draw(1, 9);
    layer.transfer = draw(1, 4);
    made.chain.layers.push_back(layer);
    const int place = l % ranks;
    const bool back = l / ranks % 2 == 1;
    made.placement.push_back(!folded ? draw(0, ranks - 1) : back ? ranks - 1 - place : place);
  }
  return made;
}

}  // namespace weft

#endif  // WEFT_TESTS_BENCH_RANDOM_CHAIN_H_
