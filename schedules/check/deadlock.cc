#include "schedules/check/deadlock.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/graph/progress.h"

namespace weft {
namespace {

constexpr int kMaxForwards = 8192;

// In a fixed order everything before a forward has ended when its turn comes.
absl::Status CheckOrders(const Graph& graph) {
  const Schedule& s = graph.schedule();
  for (Rank r = 0; r < s.ranks; ++r) {
    std::vector<int> alive(s.stages, 0);
    for (const Job& job : s.order[r]) {
      if (job.kind == graph.final_backward()) --alive[job.stage];
      if (job.kind != JobKind::kForward) continue;
      const std::optional<int> limit = s.limit(r, job.stage);
      if (limit.has_value() && alive[job.stage] >= *limit) {
        return absl::InvalidArgumentError(
            absl::StrFormat("deadlock: %s comes in the order of rank %d while %d activations of its stage "
                            "are alive, which is the limit, and the jobs that would end them come after it",
                            Describe(job), r, alive[job.stage]));
      }
      ++alive[job.stage];
    }
  }
  return absl::OkStatus();
}

// The least staleness of every micro-batch is that of its first stage, so that a micro-batch that has begun
// waits for no further version.
bool WaitsForVersionsAtTheStartOnly(const Schedule& s) {
  if (!s.staleness) return true;
  for (int b = 0; b < s.microbatches; ++b) {
    for (int stage = 1; stage < s.stages; ++stage) {
      if (s.staleness(stage, b) < s.staleness(0, b)) return false;
    }
  }
  return true;
}

// A set of forwards.
class Forwards {
 public:
  explicit Forwards(size_t size = 0) : words_((size + 63) / 64, 0) {}
  void Add(size_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void Remove(size_t i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  bool Has(size_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  void Join(const Forwards& o) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= o.words_[w];
  }
  // The first that is here and in `other` and not in `without`; -1 for none.
  int FirstIn(const Forwards& other, const Forwards& without) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      const uint64_t both = words_[w] & other.words_[w] & ~without.words_[w];
      if (both != 0) return static_cast<int>(w * 64 + __builtin_ctzll(both));
    }
    return -1;
  }

 private:
  std::vector<uint64_t> words_;
};

// The forwards of the steps that can be under way together: the first step that has one which has not
// started, and those whose versions come from before it.
class Window {
 public:
  Window(const Graph& graph, std::shared_ptr<const StepTables> tables, int first_step, int steps)
      : graph_(graph),
        tables_(std::move(tables)),
        first_(first_step),
        steps_(steps),
        per_step_(graph.schedule().stages * graph.schedule().microbatches),
        size_(static_cast<size_t>(per_step_) * steps),
        blocked_(size_),
        stuck_(size_) {}

  absl::Status Prove() {
    FindNeeds();
    Gather();
    for (bool changed = true; changed;) changed = Prune();
    for (size_t g = 0; g < size_; ++g) {
      if (blocked_.Has(g)) return DescribeCircle(static_cast<int>(g));
    }
    return absl::OkStatus();
  }

 private:
  Job JobOf(size_t forward) const {
    const int i = static_cast<int>(forward) % per_step_, microbatches = graph_.schedule().microbatches;
    return Job::Compute(first_ + static_cast<int>(forward) / per_step_, i / microbatches, i % microbatches,
                        JobKind::kForward);
  }
  size_t NumberOf(const Job& job) const {
    return static_cast<size_t>(job.step - first_) * per_step_ + job.stage * graph_.schedule().microbatches +
           job.microbatch;
  }
  int LimitOf(const Job& job) const { return *graph_.schedule().limit(graph_.RankOf(job), job.stage); }

  void FindNeeds();
  void Gather();
  bool Prune();
  std::vector<size_t> HoldersOf(size_t g) const;
  absl::Status DescribeCircle(int g) const;

  const Graph& graph_;
  const std::shared_ptr<const StepTables> tables_;
  const int first_, steps_, per_step_;
  const size_t size_;
  std::vector<Forwards> before_;  // forwards that have started when this one has, itself among them
  std::vector<Forwards> until_;   // likewise, when its activation is gone
  std::map<std::pair<Rank, int>, std::vector<size_t>> places_;  // forwards of each limited rank and stage
  Forwards blocked_, stuck_;
};

// Job by job in an order in which predecessors come first.
void Window::FindNeeds() {
  before_.assign(size_, Forwards(size_));
  until_.assign(size_, Forwards(size_));
  const int n = graph_.jobs_per_step();
  std::vector<Forwards> ancestors(static_cast<size_t>(n) * steps_, Forwards(size_));
  StepProgress progress(graph_, {.first_step = first_}, tables_);
  progress.Open(first_ + steps_ - 1);
  const auto of = [&](JobId id) -> Forwards& {
    return ancestors[static_cast<size_t>(StepOf(id) - first_) * n + IndexOf(id)];
  };
  const auto visit = [&](JobId id) {
    const Job job = progress.jobs().JobOf(id);
    if (job.kind == JobKind::kForward) {
      of(id).Add(NumberOf(job));
      before_[NumberOf(job)] = of(id);
    }
    if (job.kind == graph_.final_backward()) until_[NumberOf(job)] = of(id);
  };
  VisitInOrder(
      &progress, visit, [&](JobId from, JobId to) { of(to).Join(of(from)); }, [](int) { return -1; });
}

void Window::Gather() {
  for (size_t f = 0; f < size_; ++f) {
    const Job job = JobOf(f);
    const Rank rank = graph_.RankOf(job);
    if (!graph_.schedule().limit(rank, job.stage).has_value()) continue;
    places_[{rank, job.stage}].push_back(f);
    blocked_.Add(f);
    stuck_.Add(f);
  }
}

// The forwards that may hold the place of g, be stuck, and have started though g has not.
std::vector<size_t> Window::HoldersOf(size_t g) const {
  const Job job = JobOf(g);
  std::vector<size_t> holders;
  for (size_t h : places_.at({graph_.RankOf(job), job.stage})) {
    if (h != g && stuck_.Has(h) && !before_[h].Has(g)) holders.push_back(h);
  }
  return holders;
}

bool Window::Prune() {
  bool changed = false;
  for (const auto& [place, forwards] : places_) {
    for (size_t f : forwards) {
      if (blocked_.Has(f) && static_cast<int>(HoldersOf(f).size()) < LimitOf(JobOf(f))) {
        blocked_.Remove(f);
        changed = true;
      }
      if (stuck_.Has(f) && until_[f].FirstIn(blocked_, before_[f]) < 0) {
        stuck_.Remove(f);
        changed = true;
      }
    }
  }
  return changed;
}

absl::Status Window::DescribeCircle(int g) const {
  // Every forward that may be blocked has holders that may be stuck, and those need one that may be blocked.
  std::vector<int> walk;
  std::vector<int> holder(size_, -1);
  while (holder[g] < 0) {
    walk.push_back(g);
    holder[g] = static_cast<int>(HoldersOf(g).front());
    g = until_[holder[g]].FirstIn(blocked_, before_[holder[g]]);
  }
  const auto first = std::find(walk.begin(), walk.end(), g);
  std::string text = absl::StrCat("may deadlock: ", Describe(JobOf(g)));
  constexpr int kMaxNamed = 6;
  int named = 0;
  for (auto it = first; it != walk.end(); ++it) {
    const Job job = JobOf(*it);
    if (++named > kMaxNamed) {
      absl::StrAppend(&text, ", and so on over ", walk.end() - it, " more");
      break;
    }
    absl::StrAppend(&text, it == first ? "" : ", which", " may wait on rank ", graph_.RankOf(job), " (limit ",
                    LimitOf(job), ") for the activation of ", Describe(JobOf(holder[*it])),
                    ", which may be kept until ",
                    it + 1 == walk.end() ? "the first has run" : Describe(JobOf(it[1])));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text,
      "; raise the limit, or remove the staleness or the order that makes one micro-batch wait for another"));
}

}  // namespace

absl::Status ProveDeadlockFree(const Graph& graph, std::shared_ptr<const StepTables> tables) {
  const Schedule& s = graph.schedule();
  if (!s.limit) return absl::OkStatus();
  if (graph.replays()) return CheckOrders(graph);
  if (!graph.is_chain()) {
    const auto order = ClaimOrder(graph, std::move(tables));
    return order.ok() ? absl::OkStatus() : absl::InvalidArgumentError(order.status().message());
  }
  if (!s.precedes && WaitsForVersionsAtTheStartOnly(s)) return absl::OkStatus();
  const int steps = s.MaxStaleness() + 1;
  const int64_t forwards = int64_t{s.stages} * s.microbatches * steps;
  if (forwards > kMaxForwards) {
    return absl::InvalidArgumentError(
        absl::StrFormat("staleness or order edges let micro-batches wait for each other, so whether the "
                        "limits can deadlock must be checked forward by forward; %d forwards of %d steps are "
                        "more than the %d that can be checked; use fewer micro-batches or no limit",
                        forwards, steps, kMaxForwards));
  }
  tables = TablesOf(graph, std::move(tables));
  for (int phase = 0; phase < s.period; ++phase) {
    // A step from which on the edges are those of every step.
    const int first = (steps + 1) * s.period + phase;
    if (absl::Status status = Window(graph, tables, first, steps).Prove(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace weft
