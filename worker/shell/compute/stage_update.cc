#include "worker/shell/compute/stage_update.h"

#include <algorithm>

#include "worker/shell/compute/elementwise.h"

namespace weft {

void UpdateRange(const Optimizer& optimizer, const StageLayout& layout, int microbatches, int64_t begin,
                 int64_t n, const float* weights, float* out, const float* gradient,
                 const Optimizer::State& state) {
  int64_t at = begin;
  const auto train_until = [&](int64_t end) {
    if (end <= at) return;
    Optimizer::State of_range{};
    for (size_t i = 0; i < state.size(); ++i) {
      if (state[i] != nullptr) of_range[i] = state[i] + (at - begin);
    }
    optimizer.Apply(weights + (at - begin), out + (at - begin), gradient + (at - begin), of_range, end - at);
    at = end;
  };
  const int64_t end = begin + n;
  for (const ParameterSlot& slot : layout.slots) {
    if (slot.parameter.kind != ParameterSpec::Kind::kStatistic) continue;
    const int64_t from = std::max(at, slot.offset);
    const int64_t to = std::min(end, slot.offset + slot.parameter.elements());
    if (from >= to) continue;
    train_until(from);
    MoveAverage({kStatisticMomentum, static_cast<float>(microbatches)}, weights + (from - begin),
                out + (from - begin), gradient + (from - begin), to - from);
    at = to;
  }
  train_until(end);
}

}  // namespace weft
