#include "planner/split_order.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/require.h"

namespace weft {
namespace {

constexpr int64_t kNotYet = -1;
constexpr int kForward = 0, kInput = 1, kWeight = 2;

int64_t DurationOf(const SplitStage& stage, int kind) {
  return kind == kForward ? stage.forward : kind == kInput ? stage.input : stage.weight;
}

// Puts jobs on stages one by one, each as early as it can start.
class SplitBuilder {
 public:
  explicit SplitBuilder(const SplitPipeline& pipeline)
      : pipeline_(pipeline),
        stages_(static_cast<int>(pipeline.stages.size())),
        order_(stages_),
        ready_(stages_, 0),
        done_(stages_) {
    for (auto& end : ends_) end.assign(stages_ * pipeline.microbatches, kNotYet);
  }

  int Done(int stage, int kind) const { return done_[stage][kind]; }
  int Alive(int stage) const { return done_[stage][kForward] - done_[stage][kWeight]; }
  bool Ended(int stage, int kind) const { return Done(stage, kind) == pipeline_.microbatches; }
  bool HasWeight(int stage) const { return Done(stage, kWeight) < Done(stage, kInput); }
  int64_t FreeAt(int stage) const { return ready_[stage]; }

  // Returns when the next job of the kind can start, apart from what its stage does; kNotYet if what it needs
  // is not placed.
  int64_t InputAt(int stage, int kind) const {
    const int microbatch = Done(stage, kind);
    if (kind == kForward) return stage == 0 ? 0 : Arrival(stage - 1, kForward, microbatch);
    if (kind == kWeight) return HasWeight(stage) ? EndOf(stage, kInput, microbatch) : kNotYet;
    if (microbatch >= Done(stage, kForward)) return kNotYet;
    if (stage + 1 == stages_) return EndOf(stage, kForward, microbatch);
    return Arrival(stage + 1, kInput, microbatch);
  }

  void Put(int stage, int kind) {
    const int microbatch = done_[stage][kind]++;
    const int64_t start = std::max(ready_[stage], InputOf(stage, kind, microbatch));
    ready_[stage] = start + DurationOf(pipeline_.stages[stage], kind);
    ends_[kind][stage * pipeline_.microbatches + microbatch] = ready_[stage];
    order_[stage].push_back({static_cast<SplitKind>(kind), microbatch});
  }

  int64_t Ticks() const { return *std::max_element(ready_.begin(), ready_.end()); }
  SplitOrder& order() { return order_; }

 private:
  int64_t EndOf(int stage, int kind, int microbatch) const {
    return ends_[kind][stage * pipeline_.microbatches + microbatch];
  }
  int64_t Arrival(int stage, int kind, int microbatch) const {
    const int64_t end = EndOf(stage, kind, microbatch);
    return end == kNotYet ? kNotYet : end + pipeline_.transfer;
  }
  int64_t InputOf(int stage, int kind, int microbatch) const {
    if (kind == kForward) return stage == 0 ? 0 : Arrival(stage - 1, kForward, microbatch);
    if (kind == kWeight) return EndOf(stage, kInput, microbatch);
    const int64_t own = EndOf(stage, kForward, microbatch);
    return stage + 1 == stages_ ? own : std::max(own, Arrival(stage + 1, kInput, microbatch));
  }

  const SplitPipeline& pipeline_;
  const int stages_;
  SplitOrder order_;
  std::vector<int64_t> ready_;
  std::vector<std::array<int, 3>> done_;
  std::array<std::vector<int64_t>, 3> ends_;  // by kind: stage * microbatches + micro-batch
};

// The options of zero bubble's heuristic.
struct ZeroBubbleOptions {
  bool bubble_before_first = false;  // warm-up forwards may delay the first backward
  bool backwards_first = false;      // a forward that would delay a later stage's backward waits
  bool fill_greedily = false;        // small gaps are filled even if that makes the stage the latest
};

// The heuristic: as many warm-up forwards as fit before the first backward, then one forward and one backward
// of each stage in turn; weights go where there would be a gap, or where memory asks for it.
class ZeroBubbleHeuristic {
 public:
  ZeroBubbleHeuristic(const SplitPipeline& pipeline, const ZeroBubbleOptions& options)
      : pipeline_(pipeline),
        options_(options),
        stages_(static_cast<int>(pipeline.stages.size())),
        built_(pipeline),
        gaps_(stages_, 0) {}

  OrderedSplit Run() {
    WarmUp();
    for (int microbatch = 1; microbatch < pipeline_.microbatches; ++microbatch) {
      PutForwards();
      for (int s = stages_ - 1; s >= 0; --s) {
        FillBefore(s, kInput);
        if (s == 0 && built_.Ended(0, kForward)) {
          while (built_.HasWeight(0)) built_.Put(0, kWeight);
        }
        Put(s, kInput);
      }
    }
    for (int s = 0; s < stages_; ++s) {
      while (built_.HasWeight(s)) built_.Put(s, kWeight);
    }
    return {std::move(built_.order()), built_.Ticks(), 0};
  }

 private:
  int64_t Duration(int stage, int kind) const { return DurationOf(pipeline_.stages[stage], kind); }
  bool MayStart(int stage) const { return built_.Alive(stage) < pipeline_.stages[stage].alive; }

  void Put(int stage, int kind) {
    const int64_t gap = built_.InputAt(stage, kind) - built_.FreeAt(stage);
    if (built_.Done(stage, kForward) > 0) gaps_[stage] += std::max<int64_t>(0, gap);
    built_.Put(stage, kind);
  }

  void WarmUp() {
    for (int s = 0; s < stages_; ++s) Put(s, kForward);
    std::vector<int> more(stages_, 0);
    int64_t first = built_.FreeAt(stages_ - 1) + Duration(stages_ - 1, kInput);  // end of the first backward
    for (int s = stages_ - 2; s >= 0; --s) {
      int64_t at = built_.FreeAt(s);
      while (1 + more[s] < std::min(pipeline_.microbatches, pipeline_.stages[s].alive)) {
        const int64_t needed = options_.bubble_before_first ? at + Duration(s, kForward) : at + 1;
        if (needed > first + pipeline_.transfer) break;
        at += Duration(s, kForward);
        ++more[s];
      }
      first = std::max(at, first + pipeline_.transfer) + Duration(s, kInput);
    }
    // A stage never has more forwards than the one before it, whose output it needs.
    for (int s = 1; s < stages_; ++s) {
      while (more[s] > 0 && more[s] >= more[s - 1] && 1 + more[s] < pipeline_.microbatches) --more[s];
      more[s] = std::min(more[s], more[s - 1]);
    }
    for (int s = 0; s < stages_; ++s) {
      for (int i = 0; i < more[s]; ++i) Put(s, kForward);
    }
    for (int s = stages_ - 1; s >= 0; --s) Put(s, kInput);
  }

  // Tells whether the stage's next forward should wait, so that its backward comes first.
  bool ForwardWaits(int s) const {
    if (!options_.backwards_first || s + 1 == stages_ ||
        built_.Done(s, kForward) < built_.Done(s + 1, kForward) + 2)
      return false;
    const int64_t next =
        built_.FreeAt(s + 1) + Duration(s + 1, kForward) + Duration(s + 1, kInput) + pipeline_.transfer;
    if (built_.FreeAt(s) >= next) return true;
    const int64_t weight = MayStart(s) || !built_.HasWeight(s) ? 0 : Duration(s, kWeight);
    if (built_.FreeAt(s) + Duration(s, kForward) + weight <= next) return false;
    return next - built_.FreeAt(s) <= WorstGap() - gaps_[s];
  }

  int64_t WorstGap() const { return *std::max_element(gaps_.begin(), gaps_.end()); }

  void PutForwards() {
    std::vector<bool> wanted(stages_);
    for (int s = 0; s < stages_; ++s) wanted[s] = !built_.Ended(s, kForward) && !ForwardWaits(s);
    for (int s = stages_ - 2; s >= 0; --s) {
      // Where all is forwarded behind, only this stage is concerned.
      wanted[s] = wanted[s] && (wanted[s + 1] || built_.Ended(s + 1, kForward));
    }
    for (int s = 0; s < stages_; ++s) {
      // What keeps the pipeline from a standstill: the next backward needs its forward.
      const bool needed = built_.Done(s, kForward) == built_.Done(s, kInput);
      if ((!wanted[s] && !needed) || built_.Ended(s, kForward)) continue;
      if (built_.InputAt(s, kForward) == kNotYet) continue;
      while (!MayStart(s) && built_.HasWeight(s)) built_.Put(s, kWeight);
      if (!MayStart(s)) continue;
      FillBefore(s, kForward);
      Put(s, kForward);
    }
  }

  // Puts weights into the gap before the stage's next job of the kind.
  void FillBefore(int s, int kind) {
    const int64_t input = built_.InputAt(s, kind);
    while (built_.HasWeight(s) && built_.FreeAt(s) + Duration(s, kWeight) <= input) built_.Put(s, kWeight);
    if (!built_.HasWeight(s) || built_.FreeAt(s) >= input) return;
    const bool small = input - built_.FreeAt(s) <= WorstGap() - gaps_[s];
    if (!small || options_.fill_greedily) built_.Put(s, kWeight);
  }

  const SplitPipeline& pipeline_;
  const ZeroBubbleOptions options_;
  const int stages_;
  SplitBuilder built_;
  std::vector<int64_t> gaps_;
};

// Rules of list scheduling.
struct ListRules {
  int warm_up = 0;  // forwards that a stage may be ahead, for each stage behind it; 0 for no bound
  bool forward_first = false;
  bool fill_greedily = false;  // weights also where they delay the next job
};

// Starts, wherever a rank is free first, what the rules prefer of the jobs that can start.
std::optional<OrderedSplit> ListOrder(const SplitPipeline& pipeline, const ListRules& rules) {
  SplitBuilder built(pipeline);
  const int stages = static_cast<int>(pipeline.stages.size());
  const auto may_forward = [&](int s) {
    const int ahead = rules.warm_up == 0 ? pipeline.microbatches : 1 + rules.warm_up * (stages - 1 - s);
    return !built.Ended(s, kForward) && built.Alive(s) < pipeline.stages[s].alive &&
           built.Done(s, kForward) - built.Done(s, kInput) < ahead;
  };
  for (int left = 3 * stages * pipeline.microbatches; left > 0; --left) {
    int best = -1, best_kind = 0;
    int64_t best_start = 0;
    for (int s = 0; s < stages; ++s) {
      int64_t start = kNotYet;
      int kind = kForward;
      const auto consider = [&](int of, bool wins_ties) {
        if (built.Ended(s, of) || (of == kForward && !may_forward(s))) return;
        const int64_t input = built.InputAt(s, of);
        if (input == kNotYet) return;
        const int64_t at = std::max(input, built.FreeAt(s));
        if (start != kNotYet && (wins_ties ? at > start : at >= start)) return;
        start = at;
        kind = of;
      };
      consider(kForward, true);
      consider(kInput, !rules.forward_first);
      if (built.HasWeight(s)) {
        const bool gap = start == kNotYet ||
                         built.FreeAt(s) + (rules.fill_greedily ? 1 : pipeline.stages[s].weight) <= start;
        if (gap) {
          start = built.FreeAt(s);
          kind = kWeight;
        }
      }
      if (start == kNotYet || (best >= 0 && start >= best_start)) continue;
      best = s;
      best_start = start;
      best_kind = kind;
    }
    if (best < 0) return std::nullopt;
    built.Put(best, best_kind);
  }
  return OrderedSplit{std::move(built.order()), built.Ticks(), 0};
}

// Improves an order by moves on its critical path.
class SplitMoves {
 public:
  SplitMoves(const SplitPipeline& pipeline, const SplitSearchLimits& limits, OrderedSplit* best)
      : pipeline_(pipeline), limits_(limits), stages_(static_cast<int>(pipeline.stages.size())), best_(best) {
    for (auto& start : starts_) start.assign(stages_ * pipeline.microbatches, kNotYet);
  }

  void Run() {
    SplitOrder current = best_->order;
    int64_t ticks = Descend(&current, best_->ticks);
    for (int shakes = 0; shakes < limits_.shakes && best_->ticks > best_->lower_bound && !limits_.stop();
         ++shakes) {
      SplitOrder shaken = best_->order;
      Shake(&shaken, 2 + static_cast<int>(Random() % 6));
      const auto began = Evaluate(shaken);
      if (!began.has_value()) continue;
      ticks = Descend(&shaken, *began);
      if (ticks < best_->ticks) shakes = 0;
      Keep(shaken, ticks);
    }
  }

 private:
  uint64_t Random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }

  void Keep(const SplitOrder& order, int64_t ticks) {
    if (ticks >= best_->ticks && ticks != best_->ticks) return;
    best_->order = order;
    best_->ticks = ticks;
  }

  int64_t& StartOf(int stage, const SplitJob& job) {
    return starts_[static_cast<int>(job.kind)][stage * pipeline_.microbatches + job.microbatch];
  }
  int64_t Duration(int stage, const SplitJob& job) const {
    return DurationOf(pipeline_.stages[stage], static_cast<int>(job.kind));
  }

  // Returns when the job's input is there; kNotYet if what it needs has no start.
  int64_t InputOf(int stage, const SplitJob& job) {
    const auto end = [&](int of, SplitKind kind) {
      const SplitJob before = {kind, job.microbatch};
      const int64_t start = StartOf(of, before);
      return start == kNotYet ? kNotYet : start + Duration(of, before);
    };
    const auto arrival = [&](int of, SplitKind kind) {
      const int64_t at = end(of, kind);
      return at == kNotYet ? kNotYet : at + pipeline_.transfer;
    };
    if (job.kind == SplitKind::kForward) return stage == 0 ? 0 : arrival(stage - 1, SplitKind::kForward);
    if (job.kind == SplitKind::kWeight) return end(stage, SplitKind::kInput);
    const int64_t own = end(stage, SplitKind::kForward);
    if (stage + 1 == stages_ || own == kNotYet) return own;
    const int64_t from = arrival(stage + 1, SplitKind::kInput);
    return from == kNotYet ? kNotYet : std::max(own, from);
  }

 public:
  // Sets the earliest starts. Returns nothing for an order that cannot run or has too much alive.
  std::optional<int64_t> Evaluate(const SplitOrder& order) {
    for (auto& start : starts_) std::fill(start.begin(), start.end(), kNotYet);
    for (int s = 0; s < stages_; ++s) {
      int alive = 0;
      for (const SplitJob& job : order[s]) {
        alive += job.kind == SplitKind::kForward ? 1 : job.kind == SplitKind::kWeight ? -1 : 0;
        if (alive > pipeline_.stages[s].alive) return std::nullopt;
      }
    }
    std::vector<size_t> next(stages_, 0);
    std::vector<int64_t> free(stages_, 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (int s = 0; s < stages_; ++s) {
        for (; next[s] < order[s].size(); ++next[s], moved = true) {
          const SplitJob& job = order[s][next[s]];
          const int64_t input = InputOf(s, job);
          if (input == kNotYet) break;
          StartOf(s, job) = std::max(input, free[s]);
          free[s] = StartOf(s, job) + Duration(s, job);
        }
      }
    }
    for (int s = 0; s < stages_; ++s) {
      if (next[s] < order[s].size()) return std::nullopt;
    }
    return *std::max_element(free.begin(), free.end());
  }

 private:
  // A run of jobs of one stage that follow each other on the critical path.
  struct Block {
    int stage;
    size_t first, last;  // places in the stage's order
  };

  // Requires starts of the order. Returns the blocks from the last to the first.
  std::vector<Block> CriticalBlocks(const SplitOrder& order) {
    int stage = 0;
    int64_t latest = -1;
    for (int s = 0; s < stages_; ++s) {
      const int64_t end = StartOf(s, order[s].back()) + Duration(s, order[s].back());
      if (end > latest) {
        latest = end;
        stage = s;
      }
    }
    std::vector<Block> blocks;
    size_t place = order[stage].size() - 1;
    for (;;) {
      Block block = {stage, place, place};
      while (block.first > 0) {
        const SplitJob& before = order[stage][block.first - 1];
        if (StartOf(stage, before) + Duration(stage, before) != StartOf(stage, order[stage][block.first]))
          break;
        --block.first;
      }
      blocks.push_back(block);
      const SplitJob job = order[stage][block.first];
      if (StartOf(stage, job) == 0) return blocks;
      // The block waits for another stage.
      const int from = job.kind == SplitKind::kForward ? stage - 1 : stage + 1;
      if (from < 0 || from >= stages_ || job.kind == SplitKind::kWeight) return blocks;
      stage = from;
      place = PlaceOf(order[stage], {job.kind, job.microbatch});
    }
  }

  static size_t PlaceOf(const std::vector<SplitJob>& jobs, const SplitJob& job) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].kind == job.kind && jobs[i].microbatch == job.microbatch) return i;
    }
    return 0;
  }

  static void MoveJob(std::vector<SplitJob>* jobs, size_t from, size_t to) {
    if (from < to) {
      std::rotate(jobs->begin() + from, jobs->begin() + from + 1, jobs->begin() + to + 1);
    } else {
      std::rotate(jobs->begin() + to, jobs->begin() + from, jobs->begin() + from + 1);
    }
  }

  // Follows the best move of each round. Returns the ticks of the order that it leaves.
  int64_t Descend(SplitOrder* order, int64_t ticks) {
    for (;;) {
      Evaluate(*order);
      const std::vector<Block> blocks = CriticalBlocks(*order);
      int64_t least = ticks;
      Block best_block{};
      size_t best_from = 0, best_to = 0;
      for (const Block& block : blocks) {
        if (limits_.stop()) return ticks;
        for (size_t from = block.first; from <= block.last; ++from) {
          for (size_t to = block.first; to <= block.last; ++to) {
            if (from == to || from == to + 1) continue;
            MoveJob(&(*order)[block.stage], from, to);
            const auto moved = Evaluate(*order);
            MoveJob(&(*order)[block.stage], to, from);
            if (!moved.has_value() || *moved >= least) continue;
            least = *moved;
            best_block = block;
            best_from = from;
            best_to = to;
          }
        }
      }
      if (least >= ticks) return ticks;
      MoveJob(&(*order)[best_block.stage], best_from, best_to);
      ticks = least;
      Keep(*order, ticks);
    }
  }

  // Moves some jobs a few places.
  void Shake(SplitOrder* order, int moves) {
    for (int i = 0; i < moves; ++i) {
      std::vector<SplitJob>& jobs = (*order)[Random() % stages_];
      const size_t from = Random() % jobs.size();
      const size_t to = std::min(jobs.size() - 1, from + 1 + Random() % 3);
      MoveJob(&jobs, from, to);
      if (!Evaluate(*order).has_value()) MoveJob(&jobs, to, from);
    }
  }

  const SplitPipeline& pipeline_;
  const SplitSearchLimits& limits_;
  const int stages_;
  OrderedSplit* const best_;
  uint64_t state_ = 1;
  std::array<std::vector<int64_t>, 3> starts_;  // by kind: stage * microbatches + micro-batch
};

// A stage does all its jobs behind the first micro-batch's way to it. Whatever stage the last input gradient
// comes from, its way back follows.
int64_t LowerBound(const SplitPipeline& pipeline) {
  int64_t bound = 0, head = 0, way = 0;
  for (const SplitStage& stage : pipeline.stages) {
    bound = std::max(bound, head + pipeline.microbatches * (stage.forward + stage.input + stage.weight));
    head += stage.forward + pipeline.transfer;
    way += stage.forward + stage.input + 2 * pipeline.transfer;
  }
  way -= 2 * pipeline.transfer;
  return std::max(bound, way + pipeline.stages[0].weight);
}

void TakeIfBetter(std::optional<OrderedSplit> found, OrderedSplit* best) {
  if (found.has_value() && (best->order.empty() || found->ticks < best->ticks)) *best = *std::move(found);
}

}  // namespace

std::optional<int64_t> TicksOf(const SplitPipeline& pipeline, const SplitOrder& order) {
  if (order.size() != pipeline.stages.size()) return std::nullopt;
  for (const auto& jobs : order) {
    if (jobs.size() != static_cast<size_t>(3 * pipeline.microbatches)) return std::nullopt;
  }
  OrderedSplit ignored;
  return SplitMoves(pipeline, {}, &ignored).Evaluate(order);
}

OrderedSplit ZeroBubbleOrder(const SplitPipeline& pipeline) {
  OrderedSplit best;
  for (const bool bubble : {true, false}) {
    for (const bool backwards : {true, false}) {
      for (const bool greedily : {true, false}) {
        OrderedSplit found = ZeroBubbleHeuristic(pipeline, {bubble, backwards, greedily}).Run();
        const auto ticks = TicksOf(pipeline, found.order);
        if (ticks.has_value()) TakeIfBetter(OrderedSplit{std::move(found.order), *ticks, 0}, &best);
      }
    }
  }
  best.lower_bound = LowerBound(pipeline);
  return best;
}

OrderedSplit FindSplitOrder(const SplitPipeline& pipeline, const SplitSearchLimits& limits) {
  Require(!pipeline.stages.empty() && pipeline.microbatches >= 1, "a pipeline has stages and micro-batches");
  OrderedSplit best = ZeroBubbleOrder(pipeline);
  for (const int warm_up : {0, 1, 2, 3}) {
    for (const bool forward_first : {false, true}) {
      for (const bool greedily : {false, true})
        TakeIfBetter(ListOrder(pipeline, {warm_up, forward_first, greedily}), &best);
    }
  }
  best.lower_bound = LowerBound(pipeline);
  SplitMoves(pipeline, limits, &best).Run();
  return best;
}

}  // namespace weft
