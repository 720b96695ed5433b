// dualpipe and dualpipe_v (arXiv 2412.19437): micro-batches pass the ranks in both directions, and a forward
// of one direction runs beside the backward of the other as one overlapped pair. Both are fixed orders.
//
// dualpipe keeps two copies of the weights: stage s on rank s for the one direction and on rank W-1-s for the
// other. dualpipe_v folds twice as many stages into a V, so that both directions pass each rank with one
// copy. In either, a rank has two stages, `near` and `far`: a micro-batch of the rank's own direction meets
// it first.
#include <utility>

#include "absl/strings/str_format.h"
#include "schedules/families/family.h"

namespace weft {
namespace {

// The order of one rank: what it does with the micro-batches of its near and its far stage.
class TwoWayOrder {
 public:
  // Micro-batch number i of a way is `first + i * distance`.
  struct Way {
    int stage, first, distance;
    int forwards = 0, backwards = 0;
  };

  TwoWayOrder(Way near, Way far) : near_(near), far_(far) {}

  // `from_end`: ranks between this one and the end where its near micro-batches turn or leave; `from_start`:
  // those behind it. `steady` pairs in the middle.
  void Make(int from_start, int from_end, int steady, bool turns_here) {
    for (int i = 0; i < 2 * from_end; ++i) AddForward(near_);
    for (int i = 0; i < from_start + 1; ++i) {
      AddForward(near_);
      AddForward(far_);
    }
    for (int i = 0; i < from_end; ++i) {
      AddInput(far_);
      AddWeight();
      AddForward(far_);
    }
    for (int i = 0; i < steady; ++i) {
      // The backward of a micro-batch that has just turned would wait for its forward's pair.
      if (i == 0 && turns_here) {
        AddForward(near_);
        AddWhole(far_, kInTurn);
      } else {
        AddPair(near_, far_);
      }
      AddPair(far_, near_);
    }
    for (int i = 0; i < from_end; ++i) {
      AddWhole(far_, kInTurn);
      AddPair(far_, near_);
    }
    // The second half of these backwards is split: its weight halves fill the time after.
    const int last = from_start + 1;
    for (int i = 0; i < 2 * last; ++i) {
      Way& way = i % 2 == 0 ? far_ : near_;
      if (i < last) {
        AddWhole(way, kInTurn);
      } else {
        AddInput(way);
      }
    }
    for (int i = 0; i < from_end; ++i) {
      AddWeight();
      AddInput(near_);
    }
    for (int i = 0; i < last; ++i) AddWeight();
  }

  std::vector<Job> TakeJobs() { return std::move(jobs_); }
  std::vector<uint8_t> TakeMarks() { return std::move(marks_); }

 private:
  static int Microbatch(const Way& way, int i) { return way.first + i * way.distance; }
  void Add(int stage, int microbatch, JobKind kind, uint8_t marks) {
    jobs_.push_back(Job::Compute(0, stage, microbatch, kind));
    marks_.push_back(marks);
  }
  void AddForward(Way& way) { Add(way.stage, Microbatch(way, way.forwards++), JobKind::kForward, kInTurn); }
  void AddInput(Way& way) {
    const int b = Microbatch(way, way.backwards++);
    Add(way.stage, b, JobKind::kBackwardInput, kInTurn);
    waiting_.push_back({way.stage, b});
  }
  // The oldest backward_weight that was put off.
  void AddWeight() {
    const auto [stage, b] = waiting_[next_waiting_++];
    Add(stage, b, JobKind::kBackwardWeight, kInTurn);
  }
  void AddWhole(Way& way, uint8_t marks) {
    const int b = Microbatch(way, way.backwards++);
    Add(way.stage, b, JobKind::kBackwardInput, marks);
    Add(way.stage, b, JobKind::kBackwardWeight, marks | kFusedBackward);
  }
  void AddPair(Way& forward, Way& backward) {
    AddForward(forward);
    AddWhole(backward, kOverlapsForward);
  }

  Way near_, far_;
  std::vector<Job> jobs_;
  std::vector<uint8_t> marks_;
  std::vector<std::pair<int, int>> waiting_;  // stage and micro-batch
  size_t next_waiting_ = 0;
};

absl::Status CheckMicrobatches(absl::string_view family, int ranks, int microbatches) {
  if (microbatches % 2 == 0 && microbatches >= 2 * ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d micro-batches on %d ranks; use an even number of at least 2 W = %d, so that "
                      "both directions are full before the first backward",
                      family, microbatches, ranks, 2 * ranks));
}

void AddOrder(TwoWayOrder order, Schedule& s) {
  s.order.push_back(order.TakeJobs());
  s.order_marks.push_back(order.TakeMarks());
}

// The two directions take turns in the numbering, so that the gradients of both become due in order.
absl::StatusOr<Schedule> DualPipe(const FamilyParameters&, int stages, int microbatches) {
  if (stages % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dualpipe: %d stages; the two directions meet between two ranks, so use an even number", stages));
  }
  if (absl::Status s = CheckMicrobatches("dualpipe", stages, microbatches); !s.ok()) return s;
  Schedule s = SizedSchedule("dualpipe", stages, microbatches, stages);
  s.compute =
      s.weights = [stages](const Job& j) { return j.microbatch % 2 == 0 ? j.stage : stages - 1 - j.stage; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  s.split_backward = true;
  const int half = stages / 2;
  for (Rank r = 0; r < stages; ++r) {
    const bool down = r < half;  // its own direction is that of the even micro-batches
    const int k = down ? r : stages - 1 - r;
    TwoWayOrder order({k, down ? 0 : 1, 2}, {stages - 1 - k, down ? 1 : 0, 2});
    order.Make(k, half - k - 1, microbatches / 2 - stages + k + 1, k == half - 1);
    AddOrder(std::move(order), s);
  }
  return s;
}

absl::StatusOr<Schedule> DualPipeV(const FamilyParameters&, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = FoldedSchedule("dualpipe_v", stages, microbatches);
  if (!s.ok()) return s;
  const int ranks = s->ranks;
  if (absl::Status status = CheckMicrobatches("dualpipe_v", ranks, microbatches); !status.ok()) return status;
  for (Rank r = 0; r < ranks; ++r) {
    TwoWayOrder order({r, 0, 1}, {2 * ranks - 1 - r, 0, 1});
    order.Make(r, ranks - r - 1, microbatches - 2 * ranks + r + 1, r == ranks - 1);
    AddOrder(std::move(order), *s);
  }
  return s;
}

}  // namespace

std::vector<FamilyEntry> BidirectionalFamilies() {
  return {
      {{"dualpipe", "two directions and two copies of the weights; a forward runs beside a backward", {}},
       DualPipe},
      {{"dualpipe_v", "two stages per rank in a V, two directions; a forward runs beside a backward", {}},
       DualPipeV},
  };
}

}  // namespace weft
