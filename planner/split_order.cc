#include "planner/split_order.h"

#include <algorithm>

namespace weft {

int64_t SplitPipeline::WorkOf(size_t stage) const {
  const SplitStage& s = stages[stage];
  return microbatches * (s.forward + s.backward_input + s.backward_weight) + s.update;
}

int64_t SplitPipeline::MostWork() const {
  int64_t most = 0;
  for (size_t s = 0; s < stages.size(); ++s) most = std::max(most, WorkOf(s));
  return most;
}

bool IsSound(const SplitPipeline& pipeline, size_t stage, const std::string& word) {
  const SplitStage& s = pipeline.stages[stage];
  int64_t forwards = 0, inputs = 0, weights = 0;
  for (const char job : word) {
    forwards += job == 'F' ? 1 : 0;
    inputs += job == 'I' ? 1 : 0;
    weights += job == 'W' ? 1 : 0;
    if (inputs > forwards || weights > inputs) return false;
    // A job frees its bytes at its end, and the next one begins then.
    const int64_t bytes =
        (forwards - inputs) * (s.activation_bytes - s.weight_bytes) + (forwards - weights) * s.weight_bytes;
    if (job == 'F' && s.room > 0 && bytes > s.room) return false;
  }
  const int64_t batches = pipeline.microbatches;
  return forwards == batches && inputs == batches && weights == batches;
}

SplitClock::SplitClock(const SplitPipeline& pipeline)
    : pipeline_(pipeline),
      batches_(static_cast<size_t>(pipeline.microbatches)),
      ranks_(pipeline.stages.size()),
      forward_end_(ranks_.size() * batches_),
      input_end_(ranks_.size() * batches_),
      before_(ranks_.size()) {}

std::optional<SplitTimes> SplitClock::TimesOf(const SplitOrder& order) {
  for (RankState& rank : ranks_) rank.clock = 0;
  if (!RunStep(order)) return std::nullopt;
  SplitTimes times;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    times.span = std::max(times.span, ranks_[r].clock - ranks_[r].begin);
    before_[r] = ranks_[r].clock;
  }
  RunStep(order);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const int64_t took = ranks_[r].clock - before_[r];
    times.period = std::max(times.period, took);
    times.total += took;
  }
  return times;
}

// Goes along the ranks and back, so that activations and gradients pass many ranks in one sweep.
bool SplitClock::RunStep(const SplitOrder& order) {
  size_t remaining = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r] = {0, 0, 0, ranks_[r].clock, 0};
    remaining += order[r].size();
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks_.size(); ++r) moved = Advance(r, order[r]) || moved;
    for (size_t r = ranks_.size(); r-- > 0;) moved = Advance(r, order[r]) || moved;
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    remaining -= ranks_[r].next;
    ranks_[r].clock += pipeline_.stages[r].update;
  }
  return remaining == 0;
}

// Runs the jobs of a rank until one lacks its input. Returns true if there were any.
bool SplitClock::Advance(size_t rank, const std::string& word) {
  const SplitStage& stage = pipeline_.stages[rank];
  const size_t base = rank * batches_, size = word.size();
  RankState state = ranks_[rank];
  const size_t first = state.next;
  for (; state.next < size; ++state.next) {
    const char job = word[state.next];
    if (job == 'F') {
      const int b = state.forwards;
      if (rank > 0) {
        if (b >= ranks_[rank - 1].forwards) break;
        state.clock = std::max(state.clock, forward_end_[base - batches_ + b] + pipeline_.transfer[rank - 1]);
      }
      if (b == 0) state.begin = state.clock;
      forward_end_[base + b] = state.clock += stage.forward;
      ++state.forwards;
    } else if (job == 'I') {
      const int b = state.inputs;
      if (rank + 1 < ranks_.size()) {
        if (b >= ranks_[rank + 1].inputs) break;
        state.clock = std::max(state.clock, input_end_[base + batches_ + b] + pipeline_.transfer[rank]);
      }
      input_end_[base + b] = state.clock += stage.backward_input;
      ++state.inputs;
    } else {
      state.clock += stage.backward_weight;
    }
  }
  ranks_[rank] = state;
  return state.next > first;
}

}  // namespace weft
