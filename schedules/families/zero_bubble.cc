// Zero-bubble pipelines: the backward is split, and its half for the weights, which nobody waits for, fills
// the time in which a rank would idle. zb_h1 and zb_h2 (arXiv 2401.10241) have one stage a rank; zb_v (arXiv
// 2405.15362) folds two stages a rank into a V. All three are fixed orders.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "schedules/families/family.h"

namespace weft {
namespace {

Job Forward(int stage, int b) { return Job::Compute(0, stage, b, JobKind::kForward); }
Job Input(int stage, int b) { return Job::Compute(0, stage, b, JobKind::kBackwardInput); }
Job Weight(int stage, int b) { return Job::Compute(0, stage, b, JobKind::kBackwardWeight); }

// `warm_up` forwards, then one backward_input, the backward_weight of `delay` micro-batches before and one
// forward at a time. So warm_up + delay activations are alive.
std::vector<Job> DelayedWeights(int stage, int microbatches, int warm_up, int delay) {
  std::vector<Job> order;
  order.reserve(3 * static_cast<size_t>(microbatches));
  const int first = std::min(warm_up, microbatches);
  for (int b = 0; b < first; ++b) order.push_back(Forward(stage, b));
  for (int b = 0; b < microbatches; ++b) {
    order.push_back(Input(stage, b));
    if (b >= delay) order.push_back(Weight(stage, b - delay));
    if (first + b < microbatches) order.push_back(Forward(stage, first + b));
  }
  for (int b = std::max(0, microbatches - delay); b < microbatches; ++b) order.push_back(Weight(stage, b));
  return order;
}

absl::StatusOr<Schedule> Handcrafted(absl::string_view name, int stages, int microbatches) {
  Schedule s = SizedSchedule(name, stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  s.split_backward = true;
  return s;
}

// Every stage keeps S activations, as 1f1b's first.
absl::StatusOr<Schedule> ZbH1(const FamilyParameters&, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = Handcrafted("zb_h1", stages, microbatches);
  if (!s.ok()) return s;
  for (int i = 0; i < stages; ++i) s->order.push_back(DelayedWeights(i, microbatches, stages - i, i));
  return s;
}

// Every stage keeps 2S - 1 activations: as many forwards as fit before its first backward can start.
absl::StatusOr<Schedule> ZbH2(const FamilyParameters&, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = Handcrafted("zb_h2", stages, microbatches);
  if (!s.ok()) return s;
  for (int i = 0; i < stages; ++i) {
    s->order.push_back(DelayedWeights(i, microbatches, 2 * (stages - i) - 1, 2 * i));
  }
  return s;
}

// The order of one rank of zb_v. `down` is its stage on the way to the last rank, `up` the one on the way
// back.
class VOrder {
 public:
  VOrder(Rank rank, int ranks, int microbatches)
      : rank_(rank),
        ranks_(ranks),
        microbatches_(microbatches),
        down_{rank, 0, 0, 0},
        up_{2 * ranks - 1 - rank, 0, 0, 0} {}

  std::vector<Job> Make() {
    // The pattern needs this many micro-batches; those beyond the batch are left out as it is written.
    const int padded = std::max(2 * ranks_ - 1, microbatches_);
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) AddForward(down_);
    for (int i = 0; i < rank_; ++i) {
      AddForward(up_);
      AddForward(down_);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) AddRound(up_);
    while (up_.forwards < down_.forwards || down_.forwards < padded) {
      if (down_.forwards < padded) AddForward(down_);
      AddInput(down_);
      AddWeight(down_);
      AddRound(up_);
    }
    for (int i = 0; i < rank_; ++i) {
      AddInput(down_);
      AddInput(up_);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) {
      AddInput(down_);
      AddWeight(down_);
    }
    while (up_.weights < up_.inputs) AddWeight(up_);
    while (down_.weights < down_.inputs) AddWeight(down_);
    return std::move(order_);
  }

 private:
  struct Chunk {
    int stage, forwards, inputs, weights;  // and how many of each kind were added
  };

  void Add(const Job& job) {
    if (job.microbatch < microbatches_) order_.push_back(job);
  }
  void AddForward(Chunk& c) { Add(Forward(c.stage, c.forwards++)); }
  void AddInput(Chunk& c) { Add(Input(c.stage, c.inputs++)); }
  void AddWeight(Chunk& c) { Add(Weight(c.stage, c.weights++)); }
  void AddRound(Chunk& c) {
    AddForward(c);
    AddInput(c);
    AddWeight(c);
  }

  const Rank rank_;
  const int ranks_, microbatches_;
  Chunk down_, up_;
  std::vector<Job> order_;
};

absl::StatusOr<Schedule> ZbV(const FamilyParameters&, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = FoldedSchedule("zb_v", stages, microbatches);
  if (!s.ok()) return s;
  for (Rank r = 0; r < s->ranks; ++r) s->order.push_back(VOrder(r, s->ranks, microbatches).Make());
  return s;
}

}  // namespace

std::vector<FamilyEntry> ZeroBubbleFamilies() {
  return {
      {{"zb_h1", "pipeline with split backward; 1f1b's memory and a third of its bubble", {}}, ZbH1},
      {{"zb_h2", "pipeline with split backward; no bubble, with about twice 1f1b's memory", {}}, ZbH2},
      {{"zb_v", "two stages per rank in a V, split backward; no bubble, with 1f1b's memory", {}}, ZbV},
  };
}

}  // namespace weft
