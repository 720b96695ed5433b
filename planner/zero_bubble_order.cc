#include "planner/zero_bubble_order.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace weft {
namespace {

// Choices that the rule leaves open.
struct Form {
  bool delays_first_input;  // a further forward may come before the first backward_input and make it wait
  bool favors_inputs;       // a forward waits where a backward_input is expected before its end
  bool fills_short_gaps;    // a backward_weight that is longer than a gap is put into it nevertheless
};

class Rule {
 public:
  Rule(const SplitPipeline& pipeline, const Form& form)
      : pipeline_(pipeline), form_(form), ranks_(pipeline.stages.size()) {
    for (Rank& rank : ranks_) {
      rank.forward_end.reserve(pipeline.microbatches);
      rank.input_end.reserve(pipeline.microbatches);
    }
  }

  std::optional<SplitOrder> Make() {
    if (!WarmUp()) return std::nullopt;
    for (int b = 1; b < pipeline_.microbatches; ++b) {
      if (!AddForwards()) return std::nullopt;
      AddInputs(b);
    }
    SplitOrder order;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      while (ranks_[r].weights < pipeline_.microbatches) AddWeight(r);
      order.push_back(std::move(ranks_[r].word));
    }
    return order;
  }

 private:
  struct Rank {
    std::string word;
    std::vector<int64_t> forward_end, input_end;  // by micro-batch
    int weights = 0;
    int64_t clock = 0, bytes = 0, idle = 0;  // idle since the first forward

    int forwards() const { return static_cast<int>(forward_end.size()); }
    int inputs() const { return static_cast<int>(input_end.size()); }
    bool has_weight() const { return weights < inputs(); }
  };

  const SplitStage& Stage(size_t r) const { return pipeline_.stages[r]; }
  bool IsLast(size_t r) const { return r + 1 == ranks_.size(); }

  // Returns when the tensor for the rank's next forward, or next backward_input, is there.
  int64_t ActivationAt(size_t r) const {
    return r == 0 ? 0 : ranks_[r - 1].forward_end[ranks_[r].forwards()] + pipeline_.transfer[r - 1];
  }
  int64_t GradientAt(size_t r) const {
    return IsLast(r) ? 0 : ranks_[r + 1].input_end[ranks_[r].inputs()] + pipeline_.transfer[r];
  }

  bool HasRoom(size_t r, int64_t bytes) const {
    return Stage(r).room == 0 || bytes + Stage(r).activation_bytes <= Stage(r).room;
  }

  int64_t Start(Rank* rank, int64_t ready) const {
    const int64_t start = std::max(rank->clock, ready);
    if (!rank->word.empty()) rank->idle += start - rank->clock;
    return start;
  }
  void AddForward(size_t r) {
    Rank& rank = ranks_[r];
    rank.clock = Start(&rank, ActivationAt(r)) + Stage(r).forward;
    rank.forward_end.push_back(rank.clock);
    rank.bytes += Stage(r).activation_bytes;
    rank.word += 'F';
  }
  void AddInput(size_t r) {
    Rank& rank = ranks_[r];
    rank.clock = Start(&rank, GradientAt(r)) + Stage(r).backward_input;
    rank.input_end.push_back(rank.clock);
    rank.bytes -= Stage(r).activation_bytes - Stage(r).weight_bytes;
    rank.word += 'I';
  }
  void AddWeight(size_t r) {
    Rank& rank = ranks_[r];
    rank.clock += Stage(r).backward_weight;
    ++rank.weights;
    rank.bytes -= Stage(r).weight_bytes;
    rank.word += 'W';
  }

  // Runs the first forward of all ranks, as many others as fit before the first gradient, and the first
  // backward_input of all ranks.
  bool WarmUp() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!HasRoom(r, 0)) return false;
      AddForward(r);
    }
    std::vector<int> further(ranks_.size(), 0);
    int64_t gradient = ranks_.back().clock + Stage(ranks_.size() - 1).backward_input;
    for (size_t r = ranks_.size() - 1; r-- > 0;) {
      gradient += pipeline_.transfer[r];
      further[r] = ForwardsBefore(r, gradient);
      gradient =
          std::max(ranks_[r].clock + further[r] * Stage(r).forward, gradient) + Stage(r).backward_input;
    }
    // A rank has fewer than the one before it, whose forwards it needs, unless these are all.
    for (size_t r = 1; r < ranks_.size(); ++r) {
      const bool all = 1 + further[r - 1] == pipeline_.microbatches;
      further[r] = std::min(further[r], all ? further[r - 1] : std::max(0, further[r - 1] - 1));
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (int i = 0; i < further[r]; ++i) AddForward(r);
    }
    for (size_t r = ranks_.size(); r-- > 0;) AddInput(r);
    return true;
  }

  int ForwardsBefore(size_t r, int64_t gradient) const {
    const Rank& rank = ranks_[r];
    int count = 0;
    int64_t clock = rank.clock, bytes = rank.bytes;
    while (rank.forwards() + count < pipeline_.microbatches && HasRoom(r, bytes)) {
      const bool late = form_.delays_first_input ? clock >= gradient : clock + Stage(r).forward > gradient;
      if (late) break;
      clock += Stage(r).forward;
      bytes += Stage(r).activation_bytes;
      ++count;
    }
    return count;
  }

  int64_t MostIdle() const {
    int64_t most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.idle);
    return most;
  }

  // Returns true if the rank runs a forward before its next backward_input.
  bool WantsForward(size_t r) const {
    const Rank& rank = ranks_[r];
    if (rank.forwards() >= pipeline_.microbatches) return false;
    if (!form_.favors_inputs || IsLast(r) || rank.forwards() < ranks_[r + 1].forwards() + 2) return true;
    const Rank& next = ranks_[r + 1];
    const int64_t gradient =
        next.clock + Stage(r + 1).forward + Stage(r + 1).backward_input + pipeline_.transfer[r];
    if (rank.clock >= gradient) return false;
    int64_t end = rank.clock + Stage(r).forward, bytes = rank.bytes;
    for (int w = rank.weights; !HasRoom(r, bytes) && w < rank.inputs(); ++w) {
      end += Stage(r).backward_weight;
      bytes -= Stage(r).weight_bytes;
    }
    // A gap that makes no rank worse than the worst is no loss.
    return end <= gradient || gradient - rank.clock > MostIdle() - rank.idle;
  }

  // Runs at most one forward on each rank. Returns false if there is no room.
  bool AddForwards() {
    std::vector<bool> wants(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) wants[r] = WantsForward(r);
    for (size_t r = ranks_.size() - 1; r-- > 0;) wants[r] = wants[r] && wants[r + 1];
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!wants[r]) continue;
      while (!HasRoom(r, ranks_[r].bytes)) {
        if (!ranks_[r].has_weight()) return false;
        AddWeight(r);
      }
      if (r > 0) Fill(r, ActivationAt(r));
      AddForward(r);
    }
    return true;
  }

  void AddInputs(int microbatch) {
    for (size_t r = ranks_.size(); r-- > 0;) {
      if (!IsLast(r)) Fill(r, GradientAt(r));
      const bool drains = r == 0 && ranks_[r].forwards() == pipeline_.microbatches;
      while (drains && ranks_[r].weights < microbatch) AddWeight(r);
      AddInput(r);
    }
  }

  // Runs backward_weights until the instant at which the rank goes on.
  void Fill(size_t r, int64_t until) {
    Rank& rank = ranks_[r];
    while (rank.has_weight() && rank.clock + Stage(r).backward_weight <= until) AddWeight(r);
    if (!rank.has_weight() || rank.clock >= until) return;
    const bool matters = until - rank.clock > MostIdle() - rank.idle;
    if (matters || form_.fills_short_gaps) AddWeight(r);
  }

  const SplitPipeline& pipeline_;
  const Form form_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::vector<SplitOrder> ZeroBubbleOrders(const SplitPipeline& pipeline) {
  std::vector<SplitOrder> orders;
  for (int form = 0; form < 8; ++form) {
    auto order = Rule(pipeline, {(form & 1) != 0, (form & 2) != 0, (form & 4) != 0}).Make();
    if (order.has_value()) orders.push_back(*std::move(order));
  }
  return orders;
}

}  // namespace weft
