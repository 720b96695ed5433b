#include "worker/shell/compute/stage_update.h"

#include <algorithm>

#include "worker/shell/compute/elementwise.h"

namespace weft {
namespace {

// Calls `take(kind, from, to)` for the parts of elements [begin, end), in order. What lies between parameters
// goes with what is trained: it is zero.
template <typename Take>
void EachPart(const StageLayout& layout, int64_t begin, int64_t end, Take take) {
  using Kind = ParameterSpec::Kind;
  int64_t at = begin;
  for (const ParameterSlot& slot : layout.slots) {
    if (slot.parameter.kind != Kind::kStatistic) continue;
    const int64_t from = std::max(at, slot.offset);
    const int64_t to = std::min(end, slot.offset + slot.parameter.elements());
    if (from >= to) continue;
    if (from > at) take(Kind::kTrained, at, from);
    take(Kind::kStatistic, from, to);
    at = to;
  }
  if (at < end) take(Kind::kTrained, at, end);
}

}  // namespace

void UpdateRange(const Optimizer& optimizer, const StageLayout& layout, int microbatches, int64_t begin,
                 int64_t n, const float* weights, float* out, const float* gradient,
                 const Optimizer::State& state) {
  EachPart(layout, begin, begin + n, [&](ParameterSpec::Kind kind, int64_t from, int64_t to) {
    const int64_t at = from - begin, size = to - from;
    if (kind == ParameterSpec::Kind::kStatistic) {
      return MoveAverage({kStatisticMomentum, static_cast<float>(microbatches)}, weights + at, out + at,
                         gradient + at, size);
    }
    Optimizer::State of_part{};
    for (size_t i = 0; i < state.size(); ++i) of_part[i] = state[i] != nullptr ? state[i] + at : nullptr;
    optimizer.Apply(weights + at, out + at, gradient + at, of_part, size);
  });
}

bool AddSquares(const StageLayout& layout, int64_t begin, int64_t n, const float* gradient,
                SumOfSquares* squares) {
  bool finite = true;
  EachPart(layout, begin, begin + n, [&](ParameterSpec::Kind kind, int64_t from, int64_t to) {
    if (kind == ParameterSpec::Kind::kTrained && finite)
      finite = squares->Add(gradient + (from - begin), to - from);
  });
  return finite;
}

}  // namespace weft
