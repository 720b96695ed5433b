#include "planner/shift_search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/require.h"

namespace weft {
namespace {

constexpr int64_t kFree = std::numeric_limits<int64_t>::min() / 4;  // no path

// The pairs of tasks that share a resource, u before v in number.
struct SharingPair {
  int u, v;
};

std::vector<SharingPair> SharingPairs(const PatternProblem& problem) {
  const int n = static_cast<int>(problem.tasks.size());
  std::vector<SharingPair> pairs;
  for (int u = 0; u < n; ++u) {
    const std::vector<int>& of_u = problem.tasks[u].resources;
    for (int v = u + 1; v < n; ++v) {
      const std::vector<int>& of_v = problem.tasks[v].resources;
      const bool shared = std::any_of(of_u.begin(), of_u.end(), [&](int resource) {
        return std::find(of_v.begin(), of_v.end(), resource) != of_v.end();
      });
      if (shared) pairs.push_back({u, v});
    }
  }
  return pairs;
}

class ShiftSearch {
 public:
  ShiftSearch(const PatternProblem& problem, int64_t period, const SearchLimits& limits)
      : problem_(problem), period_(period), limits_(limits), n_(static_cast<int>(problem.tasks.size())) {}

  ShiftSearchResult Run();

 private:
  // Number of windows by which v runs behind u: from `least` to `most`.
  struct Shift {
    int u, v;
    int64_t least, most;
    std::vector<int> rows;  // that it is part of
  };
  // A tensor's copies at an instant of a row: 1 + behind(first, at) + behind(at, last).
  struct Term {
    int64_t bytes;
    int first, last;
  };
  // Memory that may be in use on a rank when the task `at` starts.
  struct Row {
    int at;
    int64_t room;
    std::vector<Term> terms;
  };
  // A task behind a new path, and the path's length to it.
  struct End {
    int task;
    int64_t ticks;
  };
  struct Change {
    int64_t* place;
    int64_t old;
  };
  // A pair to decide: v is at least `split` windows behind u, or at most split - 1.
  struct Branch {
    int pair = -1;
    int64_t split = 0;
    bool more_first = true;
  };

  int64_t& Path(int u, int v) { return path_[static_cast<size_t>(u) * n_ + v]; }
  int64_t Path(int u, int v) const { return path_[static_cast<size_t>(u) * n_ + v]; }
  int PairOf(int u, int v) const { return pair_of_[static_cast<size_t>(u) * n_ + v]; }
  int64_t DurationOf(int task) const { return problem_.tasks[task].duration; }
  // Changes a value; until the search branches there is nothing to go back to.
  void Set(int64_t& place, int64_t value) {
    if (branched_) trail_.push_back({&place, place});
    place = value;
  }
  void UndoTo(size_t mark) {
    for (; trail_.size() > mark; trail_.pop_back()) *trail_.back().place = trail_.back().old;
  }

  void MakePairs();
  void MakeRows();
  bool Begin();
  int64_t LeastBehind(int u, int v) const;
  bool LimitBehind(int u, int v, int64_t most);
  void MarkPair(int pair);
  void MarkRow(int row);
  void SetLeast(int pair, int64_t least);
  void SetMost(int pair, int64_t most);
  bool AddPath(int u, int v, int64_t ticks);
  bool TightenPair(int pair);
  bool TightenRow(int row);
  bool Propagate();
  int64_t EarliestStart(int task) const { return Path(0, task); }
  Branch ChooseOverlap() const;
  Branch ChooseForMemory() const;
  bool Fits(int row) const;
  Branch Choose() const;
  bool Decide(const Branch& branch, bool more);
  Verdict Descend();
  // Returns what it means that a propagation did not succeed.
  Verdict Refused() const { return stopped_ ? Verdict::kUnknown : Verdict::kImpossible; }

  const PatternProblem& problem_;
  const int64_t period_;
  const SearchLimits& limits_;
  const int n_;
  std::vector<int64_t> path_;  // [u * n + v]: the least start(v) - start(u)
  // [u * n + v]: the longest path that leaves the shift of u and v as it is; endless where they share
  // nothing.
  std::vector<int64_t> settled_;
  std::vector<int> pair_of_;  // [u * n + v], u < v and v < u alike; -1 for none
  std::vector<Shift> pairs_;
  std::vector<Row> rows_;
  std::vector<Change> trail_;
  std::vector<End> ends_;                    // of AddPath
  std::vector<int> open_pairs_, open_rows_;  // to tighten
  std::vector<char> pair_is_open_, row_is_open_;
  bool branched_ = false;
  int64_t nodes_ = 0, tightened_ = 0;
  bool stopped_ = false;
};

void ShiftSearch::MakePairs() {
  pair_of_.assign(static_cast<size_t>(n_) * n_, -1);
  settled_.assign(static_cast<size_t>(n_) * n_, -kFree);
  for (const SharingPair& pair : SharingPairs(problem_)) {
    const int number = static_cast<int>(pairs_.size());
    pair_of_[static_cast<size_t>(pair.u) * n_ + pair.v] = number;
    pair_of_[static_cast<size_t>(pair.v) * n_ + pair.u] = number;
    settled_[static_cast<size_t>(pair.u) * n_ + pair.v] =
        settled_[static_cast<size_t>(pair.v) * n_ + pair.u] = kFree;
    pairs_.push_back({pair.u, pair.v, kFree, -kFree, {}});
  }
  pair_is_open_.assign(pairs_.size(), 0);
}

// Memory grows only where a hold begins.
void ShiftSearch::MakeRows() {
  std::vector<std::vector<int>> row_of(problem_.ranks(), std::vector<int>(n_, -1));
  for (const PatternHold& hold : problem_.holds) {
    if (problem_.memory[hold.rank] == kUnlimitedBytes || row_of[hold.rank][hold.first] >= 0) continue;
    row_of[hold.rank][hold.first] = static_cast<int>(rows_.size());
    rows_.push_back({hold.first, problem_.memory[hold.rank] - problem_.resident[hold.rank], {}});
    for (const PatternHold& other : problem_.holds) {
      if (other.rank == hold.rank && other.bytes > 0)
        rows_.back().terms.push_back({other.bytes, other.first, other.last});
    }
  }
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (const Term& term : rows_[row].terms) {
      for (const int end : {term.first, term.last}) {
        const int pair = PairOf(end, rows_[row].at);
        if (pair < 0) continue;
        std::vector<int>& rows = pairs_[pair].rows;
        if (rows.empty() || rows.back() != static_cast<int>(row)) rows.push_back(static_cast<int>(row));
      }
    }
  }
  row_is_open_.assign(rows_.size(), 0);
}

// Sets the paths that hold in every pattern. A task waits less than a period for the one before it: else all
// that follows of its batch could run a window earlier, with no more in memory. Batches of a window are
// alike: they enter it in the order of their numbers, behind the first one.
bool ShiftSearch::Begin() {
  path_.assign(static_cast<size_t>(n_) * n_, kFree);
  for (int task = 0; task < n_; ++task) Path(task, task) = 0;
  bool possible = true;
  for (int task = 1; task < n_ && possible; ++task) {
    if (problem_.FollowsPrevious(task)) {
      const int64_t least = DurationOf(task - 1) + problem_.tasks[task - 1].lag;
      possible = AddPath(task - 1, task, least) && AddPath(task, task - 1, -(least + period_ - 1));
    } else {
      const int before = task - problem_.tasks_of_batch();
      possible = AddPath(before, task, 0) && AddPath(task, 0, -(period_ - 1));
    }
  }
  for (size_t pair = 0; pair < pairs_.size(); ++pair) MarkPair(static_cast<int>(pair));
  for (size_t row = 0; row < rows_.size(); ++row) MarkRow(static_cast<int>(row));
  for (int rank = 0; rank < problem_.ranks(); ++rank) {
    possible = possible && problem_.resident[rank] <= problem_.memory[rank];
  }
  return possible && Propagate();
}

// Returns the least number of windows that v may run behind u.
int64_t ShiftSearch::LeastBehind(int u, int v) const {
  if (u == v) return 0;
  const Shift& shift = pairs_[PairOf(u, v)];
  return shift.u == u ? shift.least : -shift.most - 1;
}

bool ShiftSearch::LimitBehind(int u, int v, int64_t most) {
  if (u == v) return most >= 0;
  const int pair = PairOf(u, v);
  const Shift& shift = pairs_[pair];
  if (shift.u == u) {
    if (shift.most > most) SetMost(pair, most);
  } else if (shift.least < -most - 1) {
    SetLeast(pair, -most - 1);
  }
  return shift.least <= shift.most;
}

void ShiftSearch::MarkPair(int pair) {
  if (pair < 0 || pair_is_open_[pair]) return;
  pair_is_open_[pair] = 1;
  open_pairs_.push_back(pair);
}

void ShiftSearch::MarkRow(int row) {
  if (row_is_open_[row]) return;
  row_is_open_[row] = 1;
  open_rows_.push_back(row);
}

void ShiftSearch::SetLeast(int pair, int64_t least) {
  Shift& shift = pairs_[pair];
  Set(shift.least, least);
  Set(settled_[static_cast<size_t>(shift.u) * n_ + shift.v], (least + 1) * period_ - DurationOf(shift.v));
  MarkPair(pair);
  for (const int row : pairs_[pair].rows) MarkRow(row);
}

void ShiftSearch::SetMost(int pair, int64_t most) {
  Shift& shift = pairs_[pair];
  Set(shift.most, most);
  Set(settled_[static_cast<size_t>(shift.v) * n_ + shift.u], -most * period_ - DurationOf(shift.u));
  MarkPair(pair);
  for (const int row : pairs_[pair].rows) MarkRow(row);
}

// Notes that start(v) - start(u) >= ticks, and what follows for all paths. Returns false if that closes a
// cycle.
bool ShiftSearch::AddPath(int u, int v, int64_t ticks) {
  if (Path(u, v) >= ticks) return true;
  if (Path(v, u) > -ticks) return false;
  // Only tasks whose path to v gets longer, and those whose path from u does, can have a new path between.
  ends_.clear();
  for (int to = 0; to < n_; ++to) {
    const int64_t from_v = Path(v, to);
    if (from_v != kFree && Path(u, to) < ticks + from_v) ends_.push_back({to, ticks + from_v});
  }
  for (int from = 0; from < n_; ++from) {
    const int64_t to_u = Path(from, u);
    if (to_u == kFree || Path(from, v) >= to_u + ticks) continue;
    int64_t* const paths = &path_[static_cast<size_t>(from) * n_];
    for (const End& end : ends_) {
      if (paths[end.task] >= to_u + end.ticks) continue;
      Set(paths[end.task], to_u + end.ticks);
      if (paths[end.task] > settled_[static_cast<size_t>(from) * n_ + end.task])
        MarkPair(PairOf(from, end.task));
    }
  }
  return true;
}

bool ShiftSearch::TightenPair(int pair) {
  const Shift& shift = pairs_[pair];
  const int u = shift.u, v = shift.v;
  if (Path(u, v) != kFree) {
    const int64_t least = -FloorDiv(period_ - DurationOf(v) - Path(u, v), period_);
    if (least > shift.least) SetLeast(pair, least);
  }
  if (Path(v, u) != kFree) {
    const int64_t most = FloorDiv(-Path(v, u) - DurationOf(u), period_);
    if (most < shift.most) SetMost(pair, most);
  }
  if (shift.least > shift.most) return false;
  return AddPath(u, v, shift.least * period_ + DurationOf(u)) &&
         AddPath(v, u, DurationOf(v) - (shift.most + 1) * period_);
}

// Bounds the copies of each tensor by the room that the least copies of all leave.
bool ShiftSearch::TightenRow(int number) {
  const Row& row = rows_[number];
  int64_t room = row.room;
  for (const Term& term : row.terms) {
    const int64_t copies = 1 + LeastBehind(term.first, row.at) + LeastBehind(row.at, term.last);
    if (copies > 0) room -= copies * term.bytes;
    if (room < 0) return false;
  }
  for (const Term& term : row.terms) {
    const int64_t first = LeastBehind(term.first, row.at), last = LeastBehind(row.at, term.last);
    const int64_t more = room / term.bytes - std::min<int64_t>(0, 1 + first + last);
    if (!LimitBehind(term.first, row.at, first + more) || !LimitBehind(row.at, term.last, last + more))
      return false;
  }
  return true;
}

bool ShiftSearch::Propagate() {
  bool possible = true;
  while (possible && !stopped_ && (!open_pairs_.empty() || !open_rows_.empty())) {
    if (!open_pairs_.empty()) {
      const int pair = open_pairs_.back();
      open_pairs_.pop_back();
      pair_is_open_[pair] = 0;
      possible = TightenPair(pair);
      constexpr int64_t kAsked = 256;  // large problems take long for a single node
      if (++tightened_ % kAsked == 0 && limits_.stop()) stopped_ = true;
    } else {
      const int row = open_rows_.back();
      open_rows_.pop_back();
      row_is_open_[row] = 0;
      possible = TightenRow(row);
    }
  }
  for (const int pair : open_pairs_) pair_is_open_[pair] = 0;
  for (const int row : open_rows_) row_is_open_[row] = 0;
  open_pairs_.clear();
  open_rows_.clear();
  return possible && !stopped_;
}

// Chooses among the pairs that overlap at the earliest starts the one that costs most, most of all where it
// costs much either way.
ShiftSearch::Branch ShiftSearch::ChooseOverlap() const {
  Branch best;
  int64_t most = -1;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    const Shift& shift = pairs_[pair];
    if (shift.least == shift.most) continue;
    const int64_t apart = EarliestStart(shift.v) - EarliestStart(shift.u);
    const int64_t windows = FloorDiv(apart, period_), rest = apart - windows * period_;
    if (rest >= DurationOf(shift.u) && rest <= period_ - DurationOf(shift.v)) continue;
    const int64_t split = rest < DurationOf(shift.u) ? windows : windows + 1;
    const int64_t later_v = split * period_ + DurationOf(shift.u) - apart;
    const int64_t later_u = apart - (split * period_ - DurationOf(shift.v));
    const int64_t cost = later_v + later_u + std::min(later_v, later_u);
    if (cost <= most) continue;
    most = cost;
    best = {static_cast<int>(pair), split, later_v <= later_u};
  }
  return best;
}

bool ShiftSearch::Fits(int number) const {
  const Row& row = rows_[number];
  int64_t room = row.room;
  const auto behind = [&](int u, int v) { return FloorDiv(EarliestStart(v) - EarliestStart(u), period_); };
  for (const Term& term : row.terms)
    room -= (1 + behind(term.first, row.at) + behind(row.at, term.last)) * term.bytes;
  return room >= 0;
}

// Chooses, where the earliest starts leave too much in memory, a pair of a tensor that could have fewer
// copies.
ShiftSearch::Branch ShiftSearch::ChooseForMemory() const {
  for (size_t number = 0; number < rows_.size(); ++number) {
    if (Fits(static_cast<int>(number))) continue;
    const Row& row = rows_[number];
    for (const Term& term : row.terms) {
      for (const auto& [u, v] : {std::pair(term.first, row.at), std::pair(row.at, term.last)}) {
        const int pair = u == v ? -1 : PairOf(u, v);
        if (pair < 0 || pairs_[pair].least == pairs_[pair].most) continue;
        const Shift& shift = pairs_[pair];
        const bool forward = shift.u == u;  // fewer windows behind means a smaller shift
        return {pair, forward ? shift.least + 1 : shift.most, !forward};
      }
    }
  }
  return {};
}

ShiftSearch::Branch ShiftSearch::Choose() const {
  const Branch overlap = ChooseOverlap();
  return overlap.pair >= 0 ? overlap : ChooseForMemory();
}

bool ShiftSearch::Decide(const Branch& branch, bool more) {
  const Shift& shift = pairs_[branch.pair];
  if (more && shift.least < branch.split) SetLeast(branch.pair, branch.split);
  if (!more && shift.most >= branch.split) SetMost(branch.pair, branch.split - 1);
  return shift.least <= shift.most && Propagate();
}

Verdict ShiftSearch::Descend() {
  ++nodes_;
  if (nodes_ > limits_.nodes || (nodes_ % 64 == 0 && limits_.stop())) stopped_ = true;
  if (stopped_) return Verdict::kUnknown;
  const Branch branch = Choose();
  if (branch.pair < 0) return Verdict::kFound;
  branched_ = true;
  for (const bool more : {branch.more_first, !branch.more_first}) {
    const size_t mark = trail_.size();
    const Verdict verdict = Decide(branch, more) ? Descend() : Refused();
    if (verdict != Verdict::kImpossible) return verdict;
    UndoTo(mark);
  }
  return Verdict::kImpossible;
}

ShiftSearchResult ShiftSearch::Run() {
  ShiftSearchResult result;
  MakePairs();
  MakeRows();
  result.verdict = LoadBound(problem_) <= period_ && Begin() ? Descend() : Refused();
  result.nodes = nodes_;
  if (result.verdict != Verdict::kFound) return result;
  result.pattern.period = period_;
  for (int task = 0; task < n_; ++task) result.pattern.starts.push_back(EarliestStart(task));
  return result;
}

// Returns the earliest starts with given shifts, or nothing if the period is too short for them.
std::optional<std::vector<int64_t>> StartsOf(const PatternProblem& problem,
                                             const std::vector<SharingPair>& pairs,
                                             const std::vector<int64_t>& shifts, int64_t period) {
  const int n = static_cast<int>(problem.tasks.size());
  std::vector<int64_t> starts(n, 0);
  for (int round = 0; round <= n; ++round) {
    bool changed = false;
    const auto raise = [&](int task, int64_t least) {
      if (starts[task] >= least) return;
      starts[task] = least;
      changed = true;
    };
    for (int task = 1; task < n; ++task) {
      if (!problem.FollowsPrevious(task)) continue;
      raise(task, starts[task - 1] + problem.tasks[task - 1].duration + problem.tasks[task - 1].lag);
    }
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto [u, v] = pairs[i];
      raise(v, starts[u] + shifts[i] * period + problem.tasks[u].duration);
      raise(u, starts[v] - (shifts[i] + 1) * period + problem.tasks[v].duration);
    }
    if (!changed) return starts;
  }
  return std::nullopt;
}

}  // namespace

ShiftSearchResult FindPattern(const PatternProblem& problem, int64_t period, const SearchLimits& limits) {
  Require(period >= 1, "a pattern's period is at least one tick");
  return ShiftSearch(problem, period, limits).Run();
}

Pattern Compressed(const PatternProblem& problem, const Pattern& pattern) {
  const std::vector<SharingPair> pairs = SharingPairs(problem);
  std::vector<int64_t> shifts;
  shifts.reserve(pairs.size());
  for (const auto& [u, v] : pairs)
    shifts.push_back(FloorDiv(pattern.starts[v] - pattern.starts[u], pattern.period));
  Pattern best = pattern;
  int64_t too_short = LoadBound(problem) - 1;
  while (too_short + 1 < best.period) {
    const int64_t period = too_short + (best.period - too_short) / 2;
    auto starts = StartsOf(problem, pairs, shifts, period);
    if (starts.has_value()) {
      best = {period, *std::move(starts)};
    } else {
      too_short = period;
    }
  }
  return best;
}

}  // namespace weft
