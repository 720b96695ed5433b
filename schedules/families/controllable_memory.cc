// v_half and v_min (arXiv 2405.15362): two stages a rank in a V, split backward, and a pattern of start times
// whose activations live about a half and a third as long as in 1f1b.
//
// The orders are made on a grid of unit-time cells, one row a rank. A micro-batch's forwards and
// backward_inputs start at the pattern's times, the next micro-batch's six cells later; the backward_weights
// take the cells that are left. Then each job moves to the earliest free cell after its predecessors at which
// no rank keeps more activations than before (the paper's squeezing), which shortens fill and drain, and the
// backward_weights are laid again. The schedule keeps the order, not the times.
#include <algorithm>
#include <array>
#include <deque>
#include <tuple>
#include <utility>

#include "schedules/families/family.h"

namespace weft {
namespace {

// The parts of a rank's work for one micro-batch, in the order in which the micro-batch passes it. The down
// stage is met on the way to the last rank, the up stage on the way back.
enum Part { kForwardDown, kForwardUp, kInputUp, kInputDown, kWeightUp, kWeightDown };
constexpr int kTimedParts = 4;  // those with times of their own; a weight part follows its input part
constexpr int kParts = 6;
constexpr int kInterval = 6;  // cells from a micro-batch to the next: one for each part

using Offsets = std::array<int, kTimedParts>;

// Start times of micro-batch 0. The extra cells keep the four times of a rank apart modulo the interval.
Offsets HalfMemory(int p, int rank) {
  const int extra = p % 2 == 0 ? 3 : 0;
  return {2 * rank, 3 * p - rank - 2, 3 * p + extra + 2 * rank - 1, 6 * p + extra - rank - 2};
}
Offsets LeastMemory(int p, int rank) {
  const int extra = p % 3 == 0 ? 2 : 0;
  return {rank, 2 * p - rank - 1, 2 * p + extra + rank, 4 * p + extra - rank - 1};
}

struct Placed {
  int time;
  Rank rank;
  Part part;
  int microbatch;
  bool operator<(const Placed& o) const {
    return std::tie(time, rank, part, microbatch) < std::tie(o.time, o.rank, o.part, o.microbatch);
  }
};

class Grid {
 public:
  Grid(int ranks, int microbatches, Offsets (*offsets)(int ranks, int rank))
      : ranks_(ranks), microbatches_(microbatches), rows_(ranks) {
    for (Rank r = 0; r < ranks; ++r) {
      const Offsets offset = offsets(ranks, r);
      for (int part = 0; part < kTimedParts; ++part) {
        for (int b = 0; b < microbatches; ++b) TimeOf(r, part).push_back(offset[part] + kInterval * b);
      }
      LayWeights(r);
    }
  }

  void Squeeze();
  // The jobs of a rank in the order of their times.
  std::vector<Job> OrderOf(Rank rank) const;

 private:
  struct Row {
    std::array<std::vector<int>, kParts> time;  // by micro-batch
    std::vector<char> taken;                    // by cell
    std::vector<int> alive;                     // activations, by cell
  };

  std::vector<int>& TimeOf(Rank r, int part) { return rows_[r].time[part]; }
  void LayWeights(Rank r);
  void CountCells(Rank r);
  int Earliest(const Placed& job) const;
  int FreeCellFrom(const Placed& job, int earliest, int most) const;
  void Move(const Placed& job, int to);

  const int ranks_, microbatches_;
  std::vector<Row> rows_;
};

// Each backward_weight in the first cell that is free after its backward_input, in the order of those.
void Grid::LayWeights(Rank r) {
  std::vector<std::pair<int, int>> timed;  // time, part
  for (int part = 0; part < kTimedParts; ++part) {
    for (int time : TimeOf(r, part)) timed.push_back({time, part});
  }
  std::sort(timed.begin(), timed.end());
  TimeOf(r, kWeightUp).clear();
  TimeOf(r, kWeightDown).clear();
  std::deque<int> waiting;  // weight parts; within a part micro-batches are in order
  size_t next = 0;
  for (int cell = 0; next < timed.size() || !waiting.empty(); ++cell) {
    if (next < timed.size() && timed[next].first <= cell) {
      const int part = timed[next++].second;
      if (part == kInputUp) waiting.push_back(kWeightUp);
      if (part == kInputDown) waiting.push_back(kWeightDown);
    } else if (!waiting.empty()) {
      TimeOf(r, waiting.front()).push_back(cell);
      waiting.pop_front();
    }
  }
}

void Grid::CountCells(Rank r) {
  Row& row = rows_[r];
  int cells = 0;
  for (const auto& times : row.time) cells = std::max(cells, times.back() + 1);
  row.taken.assign(cells, 0);
  row.alive.assign(cells + 1, 0);
  for (const auto& times : row.time) {
    for (int t : times) row.taken[t] = 1;
  }
  for (int part : {kForwardDown, kForwardUp}) {
    for (int t : row.time[part]) ++row.alive[t];
  }
  for (int part : {kWeightDown, kWeightUp}) {
    for (int t : row.time[part]) --row.alive[t + 1];
  }
  for (int t = 1; t <= cells; ++t) row.alive[t] += row.alive[t - 1];
}

// The cell after the ends of the job's predecessors, and after the micro-batch before it.
int Grid::Earliest(const Placed& job) const {
  const auto after = [&](Rank rank, int part) { return rows_[rank].time[part][job.microbatch] + 1; };
  int earliest = job.microbatch > 0 ? rows_[job.rank].time[job.part][job.microbatch - 1] + 1 : 0;
  if (job.part == kWeightUp || job.part == kWeightDown) {
    return std::max(earliest, after(job.rank, job.part == kWeightUp ? kInputUp : kInputDown));
  }
  if (job.part != kForwardDown) earliest = std::max(earliest, after(job.rank, job.part - 1));
  const bool outward = job.part == kForwardDown || job.part == kInputUp;  // from rank 0 to the last
  const Rank before = outward ? job.rank - 1 : job.rank + 1;
  if (before >= 0 && before < ranks_) earliest = std::max(earliest, after(before, job.part));
  return earliest;
}

// The first free cell in [earliest, job.time) that the job may take, or job.time. A forward that moves is
// alive for longer: never with more than `most`.
int Grid::FreeCellFrom(const Placed& job, int earliest, int most) const {
  const Row& row = rows_[job.rank];
  if (job.part == kForwardDown || job.part == kForwardUp) {
    for (int cell = job.time; cell > earliest; --cell) {
      if (row.alive[cell - 1] >= most) earliest = cell;
    }
  }
  int cell = earliest;
  while (cell < job.time && row.taken[cell]) ++cell;
  return cell;
}

void Grid::Move(const Placed& job, int to) {
  Row& row = rows_[job.rank];
  row.taken[job.time] = 0;
  row.taken[to] = 1;
  row.time[job.part][job.microbatch] = to;
  if (job.part == kForwardDown || job.part == kForwardUp) {
    for (int t = to; t < job.time; ++t) ++row.alive[t];
  }
  if (job.part == kWeightDown || job.part == kWeightUp) {
    for (int t = to + 1; t <= job.time; ++t) --row.alive[t];
  }
}

void Grid::Squeeze() {
  int most = 0;
  std::vector<Placed> jobs;
  for (Rank r = 0; r < ranks_; ++r) {
    CountCells(r);
    most = std::max(most, *std::max_element(rows_[r].alive.begin(), rows_[r].alive.end()));
    for (int part = 0; part < kParts; ++part) {
      for (int b = 0; b < microbatches_; ++b) {
        jobs.push_back({rows_[r].time[part][b], r, static_cast<Part>(part), b});
      }
    }
  }
  std::sort(jobs.begin(), jobs.end());
  for (const Placed& job : jobs) {
    const int to = FreeCellFrom(job, std::min(Earliest(job), job.time), most);
    if (to < job.time) Move(job, to);
  }
  for (Rank r = 0; r < ranks_; ++r) LayWeights(r);
}

std::vector<Job> Grid::OrderOf(Rank rank) const {
  constexpr JobKind kKinds[kParts] = {JobKind::kForward,        JobKind::kForward,
                                      JobKind::kBackwardInput,  JobKind::kBackwardInput,
                                      JobKind::kBackwardWeight, JobKind::kBackwardWeight};
  std::vector<std::pair<int, Job>> timed;
  for (int part = 0; part < kParts; ++part) {
    const bool down = part == kForwardDown || part == kInputDown || part == kWeightDown;
    const int stage = down ? rank : 2 * ranks_ - 1 - rank;
    for (int b = 0; b < microbatches_; ++b) {
      timed.push_back({rows_[rank].time[part][b], Job::Compute(0, stage, b, kKinds[part])});
    }
  }
  std::sort(timed.begin(), timed.end());
  std::vector<Job> order;
  order.reserve(timed.size());
  for (const auto& [time, job] : timed) order.push_back(job);
  return order;
}

absl::StatusOr<Schedule> FromPattern(absl::string_view name, int stages, int microbatches,
                                     Offsets (*offsets)(int ranks, int rank)) {
  absl::StatusOr<Schedule> s = FoldedSchedule(name, stages, microbatches);
  if (!s.ok()) return s;
  Grid grid(s->ranks, microbatches, offsets);
  grid.Squeeze();
  for (Rank r = 0; r < s->ranks; ++r) s->order.push_back(grid.OrderOf(r));
  return s;
}

absl::StatusOr<Schedule> VHalf(const FamilyParameters&, int stages, int microbatches) {
  return FromPattern("v_half", stages, microbatches, HalfMemory);
}

absl::StatusOr<Schedule> VMin(const FamilyParameters&, int stages, int microbatches) {
  return FromPattern("v_min", stages, microbatches, LeastMemory);
}

}  // namespace

std::vector<FamilyEntry> ControllableMemoryFamilies() {
  return {
      {{"v_half", "two stages per rank in a V, split backward; about half of 1f1b's memory and bubble", {}},
       VHalf},
      {{"v_min", "two stages per rank in a V, split backward; about a third of 1f1b's memory", {}}, VMin},
  };
}

}  // namespace weft
