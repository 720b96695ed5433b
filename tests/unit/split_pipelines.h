// Makes the pipelines on which orders with split backwards are tested and measured.
#ifndef WEFT_TESTS_UNIT_SPLIT_PIPELINES_H_
#define WEFT_TESTS_UNIT_SPLIT_PIPELINES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/splitmix64.h"
#include "planner/split_order.h"

namespace weft {

inline SplitPipeline EqualPipeline(int ranks, int microbatches, const SplitStage& stage = {},
                                   int64_t transfer = 0) {
  SplitPipeline pipeline;
  pipeline.stages.assign(ranks, stage);
  pipeline.transfer.assign(ranks - 1, transfer);
  pipeline.microbatches = microbatches;
  return pipeline;
}

// Returns stages whose times differ by up to the part `spread` in either direction, and so does each kind of
// job. A rank has room for so many micro-batches; half of a micro-batch's bytes stay to its backward_weight.
inline SplitPipeline UnequalPipeline(int ranks, int microbatches, double spread, int64_t room,
                                     uint64_t seed) {
  uint64_t drawn = 0;
  const auto about = [&](double mean) {
    const double part = static_cast<double>(SplitMix64(seed, drawn++) % 1001) / 1000;
    return static_cast<int64_t>(mean * (1 + spread * (2 * part - 1)));
  };
  SplitPipeline pipeline = EqualPipeline(ranks, microbatches, {}, 4);
  for (SplitStage& stage : pipeline.stages) {
    const auto scale = static_cast<double>(about(1000));
    stage.forward = about(scale / 10);
    stage.backward_input = about(scale / 10);
    stage.backward_weight = about(scale / 12);
    stage.activation_bytes = 2;
    stage.room = 2 * room;
  }
  return pipeline;
}

// Returns the least period of the orders that do not deadlock.
inline int64_t LeastPeriodOf(const SplitPipeline& pipeline, const std::vector<SplitOrder>& orders) {
  SplitClock clock(pipeline);
  int64_t least = INT64_MAX;
  for (const SplitOrder& order : orders) {
    const auto times = clock.TimesOf(order);
    if (times.has_value()) least = std::min(least, times->period);
  }
  return least;
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_SPLIT_PIPELINES_H_
