#include "worker/shell/compute/stage_update.h"

#include <algorithm>

#include "worker/shell/compute/elementwise.h"

namespace weft {
namespace {

// Returns how many of elements [begin, begin + n) lie before `place`. The gaps between parameters go with the
// kind before them: they are zero.
int64_t Before(int64_t place, int64_t begin, int64_t n) { return std::clamp<int64_t>(place - begin, 0, n); }

// Returns how many of these elements are trained: they come first.
int64_t TrainedOf(const StageLayout& layout, int64_t begin, int64_t n) {
  return Before(layout.statistics_begin, begin, n);
}

Optimizer::State Behind(const Optimizer::State& state, int64_t elements) {
  Optimizer::State behind = state;
  for (float*& buffer : behind) {
    if (buffer != nullptr) buffer += elements;
  }
  return behind;
}

// Moves the statistics in [begin, end) of the buffer, each by its momentum; the pointers point at `begin`.
void MoveStatistics(const FlatMath& math, const StageLayout& layout, int microbatches, int64_t begin,
                    int64_t end, const float* weights, float* out, const float* gradient) {
  for (size_t i = 0; i < layout.momenta.size(); ++i) {
    const int64_t next = i + 1 < layout.momenta.size() ? layout.momenta[i + 1].begin : layout.elements;
    const int64_t from = std::max(begin, layout.momenta[i].begin), n = std::min(end, next) - from;
    if (n <= 0) continue;
    const int64_t at = from - begin;
    math.MoveAverage({layout.momenta[i].momentum, static_cast<float>(microbatches)}, weights + at, out + at,
                     gradient + at, n);
  }
}

}  // namespace

void UpdateRange(const FlatMath& math, const Optimizer& optimizer, const StageLayout& layout,
                 int microbatches, int64_t begin, int64_t n, const float* weights, float* out,
                 const float* gradient, const Optimizer::State& state, const float* factor) {
  const int64_t trained = TrainedOf(layout, begin, n), statistics = n - trained;
  const int64_t decaying = Before(layout.no_decay_begin, begin, trained), others = trained - decaying;
  if (decaying > 0) optimizer.Apply(math, weights, out, gradient, state, factor, decaying);
  if (others > 0) {
    optimizer.Apply(math, weights + decaying, out + decaying, gradient + decaying, Behind(state, decaying),
                    factor, others, /*decays=*/false);
  }
  if (statistics > 0) {
    MoveStatistics(math, layout, microbatches, begin + trained, begin + n, weights + trained, out + trained,
                   gradient + trained);
  }
}

void AddSquares(const FlatMath& math, const StageLayout& layout, int64_t begin, int64_t n,
                const float* gradient, uint64_t* limbs) {
  const int64_t trained = TrainedOf(layout, begin, n);
  if (trained > 0) math.AddSquares(limbs, gradient, trained);
}

}  // namespace weft
